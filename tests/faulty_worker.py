"""A worker that does wrong, for tests of deployments: a process of its own.

In the n-th round that it is asked about it does the n-th of --faults first,
and answers as it should when it is asked again.
"""

import os
import signal
import time

import numpy as np
from absl import flags

from dpmf_jax.commands import cli
from dpmf_jax.commands.federated import worker
from dpmf_jax.federated import messages

_LATE = flags.DEFINE_float('late', 60.0, 'Seconds by which it is late.')
_FAULTS = flags.DEFINE_list('faults', [], 'What it does wrong, by round.')


def changed(data, place, change):
  """A message with one array changed."""
  message = messages.from_bytes(data)
  arrays = list(message.arrays)
  arrays[place] = change(arrays[place].copy())
  return messages.to_bytes(message._replace(arrays=tuple(arrays)))


def not_a_number(gradients):
  gradients[0, 0] = np.nan
  return gradients


def unknown_item(items):
  items[-1] = 1_000_000
  return items


def late(data, first):
  del first
  time.sleep(_LATE.value)
  return data


def killed(data, first):
  """Nothing: the answer was saved, and is never sent."""
  del data, first
  os.kill(os.getpid(), signal.SIGKILL)


# (right answer, right answer of the first round) -> wrong answer
WRONG = {
  'shape': lambda data, first: changed(data, 4, lambda x: x[:, :1]),
  'nan': lambda data, first: changed(data, 4, not_a_number),
  'item': lambda data, first: changed(data, 3, unknown_item),
  'replayed': lambda data, first: first,
  'late': late,
  'killed': killed,
}


def faulty(handle):
  """`handle`, but wrong at first in as many rounds as there are faults."""
  seen: dict[int, bytes] = {}

  def wrong(data):
    round = messages.from_bytes(data).round
    right = handle(data)
    if round in seen or len(seen) >= len(_FAULTS.value):
      return right
    fault = WRONG[_FAULTS.value[len(seen)]]
    seen[round] = right
    return fault(right, next(iter(seen.values())))

  return wrong


if __name__ == '__main__':
  right_handler = worker.handler
  worker.handler = lambda *args: faulty(right_handler(*args))
  cli.run(worker.main)
