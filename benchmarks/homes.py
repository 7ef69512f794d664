"""Memory of tables of users, and what crosses the network, by processes.

Starts 1, 2 and 4 processes on this machine, with one device each. They train a
system for a block of steps on synthetic ratings: with tables of users
everywhere, and with each user's rows where the ratings are (`homes.py`).
Counted, not timed. In bytes, of the process with the most:

  users    of arrays in the state, and of the fitted model, with rows of users
  tables   of items in the state, between programs
  live     of all arrays between programs, ratings included
  program  that the program of a block of steps takes beside its arguments
  fit      that of the users' fit to the items takes
  sent     of the largest collective operations of a step, and of that fit

Beside these is a hash of the items: all must be the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

_SYSTEM = flags.DEFINE_string('system', 'gaussian_mf', 'What to train.')
_USERS = flags.DEFINE_integer('users', 100_000, 'How many.')
_ITEMS = flags.DEFINE_integer('items', 200, 'How many.')
_RATINGS = flags.DEFINE_integer('ratings', 500_000, 'How many.')
_SPREAD = flags.DEFINE_bool('spread_items', False, 'Spread tables of items.')
_COUNTS = flags.DEFINE_list('processes', ['1', '2', '4'], 'How many.')
# Of a process that this one starts: address, number of processes and its own.
_MEMBER = flags.DEFINE_list('member', None, 'Not for you.')

_SETTINGS: dict[str, dict[str, Any]] = {
  'gaussian_mf': {'rank': 16, 'steps': 4},
  'dpals': {'rank': 8, 'steps': 4},
  'ranking_mf': {'rank': 8},
  'moments': {},
  'power_mf': {'rank': 8},
}
_COLLECTIVE = re.compile(
  r'= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|'
  r'reduce-scatter|collective-broadcast)(?:-start)?\('
)
_WIDTH = {'pred': 1, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 's64': 8, 'u64': 8}


def sent_bytes(programs: Sequence[Any]) -> list[tuple[str, int]]:
  """The collective operations of compiled programs, the largest first."""
  found = []
  text = '\n'.join(program.as_text() for program in programs)
  for shapes, name in _COLLECTIVE.findall(text):
    size = 0
    for kind, lengths in re.findall(r'(\w+)\[([\d,]*)\]', shapes):
      own = _WIDTH.get(kind, 4)
      for length in filter(None, lengths.split(',')):
        own *= int(length)
      size += own
    found.append((name, size))
  return sorted(found, key=lambda each: -each[1])


def _member(address: str, count: int, number: int) -> None:
  import jax

  jax.config.update('jax_num_cpu_devices', 1)

  from dpmf_jax.runs import processes

  if count == 1:
    _measured()
    return
  with processes.joined(address, count, number):
    _measured()


def _measured() -> None:
  import jax
  import numpy as np

  from dpmf_jax import training
  from dpmf_jax.homes import data_at_home, map_tables, spread_items, whole_items
  from dpmf_jax.kernels import regression
  from dpmf_jax.ratings.synthetic import synthetic
  from dpmf_jax.rows import device_mesh, training_data
  from dpmf_jax.runs import choosing, processes
  from dpmf_jax.types import Kinds

  def nbytes(tree: Any) -> int:
    shards = [
      shard.data.nbytes
      for leaf in jax.tree.leaves(tree)
      for shard in leaf.addressable_shards
    ]
    return sum(shards)

  def room(program: Any) -> int:
    return program.memory_analysis().temp_size_in_bytes

  ratings = synthetic(
    num_users=_USERS.value,
    num_items=_ITEMS.value,
    num_ratings=_RATINGS.value,
    seed=0,
  )
  chosen = choosing.chosen(
    _SYSTEM.value,
    {'epsilon': 4.0, 'unit': None, **_SETTINGS[_SYSTEM.value]},
    ratings,
  )
  mesh = device_mesh()
  own = processes.at_home(processes.owned(ratings), mesh)
  del ratings
  for homes in (False, True):
    system, key = chosen.system, jax.random.key(0)
    data = (data_at_home if homes else training_data)(own, mesh=mesh)
    if _SPREAD.value:
      data = spread_items(data)
    if not homes:
      system = system._replace(users_apart=False)
    used = training.data_for(system, data)
    with training.in_float32():
      state = training._put(system.init(key, used), used)
      if isinstance(system.step, Kinds):
        kinds = system.step.each
        steps = [training._one.lower(each, key, state, used) for each in kinds]
      else:
        steps = [training._block.lower(system.step, key, state, used, 0, 2)]
      programs = [step.compile() for step in steps]
    state = training.fit(system, key, data)
    tables: list[Any] = []
    map_tables(state, item=tables.append)
    kept = nbytes(tables)
    del tables
    model = system.model(whole_items(state, data), data)
    fits = model.fit is not None
    users = [state.factors.user, *([model.factors.user] if fits else [])]
    items = model._replace(factors=model.factors._replace(user=None))
    sent = sent_bytes(programs)
    found = {
      'homes': homes,
      'users': nbytes(users),
      'tables': kept,
      'live': nbytes(jax.live_arrays()),
      'program': max(map(room, programs)),
      'sent': sent[:3],
    }
    if fits:
      users_of = regression._fitted_at_home
      users_of = users_of if homes else jax.jit(regression._fitted)
      fit = users_of.lower(data.by_user, items).compile()
      found['fit'] = room(fit)
      found['fit sent'] = sent_bytes([fit])[:1]
    released = np.asarray(model.factors.item).tobytes()
    found['items'] = hashlib.sha256(released).hexdigest()[:8]
    print(json.dumps(found), flush=True)
    del state, model, users, items, data, used


def main(argv: Sequence[str]) -> None:
  if _MEMBER.value:
    address, count, number = _MEMBER.value
    _member(address, int(count), int(number))
    return
  for count in map(int, _COUNTS.value):
    with socket.create_server(('127.0.0.1', 0)) as server:
      address = f'127.0.0.1:{server.getsockname()[1]}'
    started = [
      subprocess.Popen(
        [
          *[sys.executable, '-m', 'benchmarks.homes', *argv[1:]],
          *(f'--{flag.name}={flag.value}' for flag in _SHARED),
          f'--member={address},{count},{number}',
        ],
        stdout=subprocess.PIPE,
        text=True,
      )
      for number in range(count)
    ]
    said = [
      [
        line
        for line in process.communicate()[0].splitlines()
        if line[:1] == '{'
      ]
      for process in started
    ]
    for lines in zip(*said, strict=True):
      found = [json.loads(line) for line in lines]
      most = {
        name: max(each[name] for each in found)
        for name in found[0]
        if isinstance(found[0][name], int)
      }
      print(json.dumps({'processes': count, **found[0], **most}), flush=True)


_SHARED = (_SYSTEM, _USERS, _ITEMS, _RATINGS, _SPREAD)

if __name__ == '__main__':
  app.run(main)
