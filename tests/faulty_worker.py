"""A node's worker that does wrong, for `federated_test`: a process of its own.

In round r it first gives the r-th wrong answer below, and the right one when
it is asked again.
"""

import time

import numpy as np
from absl import flags

from dpmf_jax import messages
from launch import cli
from launch.federated import worker

_LATE = flags.DEFINE_float('late', 60.0, 'Seconds by which it is late.')


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


def faulty(handle):
  """`handle`, but wrong at first in the first five rounds."""
  first: list[bytes] = []
  seen: set[int] = set()

  def wrong(data):
    round = messages.from_bytes(data).round
    right = handle(data)
    if round in seen:
      return right
    seen.add(round)
    first.append(right)
    if round == 0:
      return changed(right, 4, lambda gradients: gradients[:, :1])
    if round == 1:
      return changed(right, 4, not_a_number)
    if round == 2:
      return changed(right, 3, unknown_item)
    if round == 3:
      return first[0]  # replayed
    if round == 4:
      time.sleep(_LATE.value)
    return right

  return wrong


if __name__ == '__main__':
  right_handler = worker.handler
  worker.handler = lambda *args: faulty(right_handler(*args))
  cli.run(worker.main)
