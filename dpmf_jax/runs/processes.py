"""Training by several processes, which together are one curator.

Each has the ratings of its own users and their rows of tables (`homes.py`),
all have the tables of items, and sums over users and ratings are of integers:
what is released is the same, to the bit, on any number of processes. The first
one has the folder, the ledger and the key, which it tells the others.

A process that ends says why on its lifeline, a connection to the first one, and
one that is killed says nothing: the system closes the connection. Either way
all of them stop. Collectives alone would not do: a device of a process that
waits for another one that is still there would not notice.

Privacy: ratings, and the key of the run, go from process to process without
encryption (gloo has none): the network between them must be the curator's own.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import io
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from dpmf_jax import files, keys
from dpmf_jax.homes import homes_of, map_tables
from dpmf_jax.ratings import exchange
from dpmf_jax.ratings.table import DataError, Ratings
from dpmf_jax.rows import Data

GONE = 3  # the exit code where another process has ended
_AXIS = 'processes'
_SMALL, _PIECE = 2**14, 2**22  # bytes that go to each process at a time
_PATIENCE = 3600  # seconds in which all processes have to be started
_LAST_WORDS = 60  # seconds
_BYE = b'\n'
# Systems whose sums over ratings are of integers, and which can have users
# where their ratings are (`System.users_apart`).
_SYSTEMS = ('power_mf', 'dpals', 'ranking_mf', 'moments', 'gaussian_mf')


def count() -> int:
  """How many processes there are."""
  return jax.process_count()


def first() -> bool:
  """Whether this is the one that writes."""
  return jax.process_index() == 0


def check_system(name: str, variant: str) -> None:
  """Raises ValueError where several processes are not for such a system."""
  if count() > 1 and (name not in _SYSTEMS or variant != 'sound'):
    raise ValueError(
      f'system={name} (variant={variant}) cannot be trained by '
      f'{count()} processes: use one, or a sound {", ".join(_SYSTEMS)}'
    )


def check_item_tables(where: str, name: str, variant: str) -> None:
  """Raises ValueError where tables of items are not to be `where` they are."""
  if where not in ('everywhere', 'spread'):
    raise ValueError(f"item_tables={where!r} must be 'everywhere' or 'spread'")
  if where == 'spread' and (name not in _SYSTEMS or variant != 'sound'):
    raise ValueError(
      f"item_tables='spread' is not for system={name} (variant={variant}): "
      f'leave it out, or use a sound {", ".join(_SYSTEMS)}'
    )


@contextlib.contextmanager
def joined(
  coordinator: str,
  num_processes: int | None,
  process_id: int | None,
  *,
  words: Callable[[BaseException], str] = str,
) -> Iterator[None]:
  """Makes this process one of several, until the end of the block.

  Call it before JAX has devices. An error in the block is told to the others,
  which stop.

  Args:
    coordinator: host:port of the first process, or 'auto' where JAX finds all
      of this by itself (SLURM, Open MPI, TPU).
    num_processes, process_id: how many there are, and the number of this one
      from 0; None with 'auto'.
    words: for an error, to be told to the others.
  """
  own = coordinator != 'auto'
  jax.distributed.initialize(
    coordinator if own else None,
    num_processes,
    process_id,
    initialization_timeout=_PATIENCE,
  )
  if count() == 1:
    yield
    return
  _connect_devices()
  host = coordinator.rpartition(':')[0] if own else socket.gethostname()
  lifelines = _Lifelines(host)
  try:
    yield
    gathered(b'')  # nobody leaves before all are done
  except BaseException as error:
    if 'Gloo' in str(error):
      time.sleep(_LAST_WORDS)  # the lifeline says more, and ends this process
    lifelines.end(f'stopped: {" ".join(words(error).split())}')
    raise
  lifelines.end('')


def _connect_devices() -> None:
  """Connects all devices; on CPUs they need no coordinator from then on.

  Its clients end the process with a page of C++ where the coordinator is
  gone, before anything else can be said.
  """
  for mesh in (Mesh(np.array(jax.devices()), (_AXIS,)), _one_of_each()):
    sharding = NamedSharding(mesh, Spec(_AXIS))
    own = np.ones(len(mesh.local_devices), np.int32)
    ones = jax.make_array_from_process_local_data(sharding, own)
    jnp.sum(ones).block_until_ready()
  if jax.default_backend() == 'cpu':
    jax.distributed.shutdown()


class _Lifelines:
  """Connections between the first process and each of the others."""

  def __init__(self, host: str):
    self._ended = threading.Lock()
    self._lines: dict[int, socket.socket] = {}
    self._number, self._count = jax.process_index(), count()
    token = secrets.token_bytes(16)
    if first():
      listener = socket.create_server(('', 0))
      told = gathered(
        token + json.dumps([host, listener.getsockname()[1]]).encode()
      )
      with listener:
        while len(self._lines) < self._count - 1:
          line, _ = listener.accept()
          said = _exactly(line, 18)
          if hmac.compare_digest(said[:16], token):
            self._lines[int.from_bytes(said[16:])] = line
    else:
      told = gathered(b'')[0]
      line = socket.create_connection(tuple(json.loads(told[16:])))
      line.sendall(told[:16] + self._number.to_bytes(2))
      self._lines[0] = line
    self._watchers = []
    for number, line in self._lines.items():
      _keep_alive(line)
      watcher = threading.Thread(
        target=self._watch, args=(number, line), daemon=True
      )
      watcher.start()
      self._watchers.append(watcher)

  def _watch(self, number: int, line: socket.socket) -> None:
    """Stops this process where another one ends, unless all is done."""
    try:
      said = line.makefile('rb').readline()
    except OSError:
      said = b''
    if said == _BYE:
      return
    gone = (
      f'process {number} of {self._count} is gone; give all processes the same '
      'command again, and the run goes on from its last checkpoint\n'
    )
    self._stop(said.decode('utf-8', 'replace') or gone)

  def _stop(self, said: str) -> None:
    if not self._ended.acquire(blocking=False):
      return  # whoever has it ends the process
    self._tell(said)
    sys.stdout.flush()
    os.write(2, f'error: {said.rstrip()}\n'.encode())
    os._exit(GONE)

  def _tell(self, said: str) -> None:
    for line in self._lines.values():
      with contextlib.suppress(OSError):
        line.sendall(said.encode())

  def end(self, why: str) -> None:
    """Says to the others that this process ends, and why if it should not."""
    self._ended.acquire()
    said = f'process {self._number} of {self._count} {why}' if why else ''
    self._tell(f'{said}\n')
    for line in self._lines.values():
      with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    for watcher in self._watchers:
      watcher.join()  # no thread is left to wake while Python ends


def _keep_alive(line: socket.socket) -> None:
  """Has the system ask, every minute or so, whether the other host is there."""
  line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, value in (('IDLE', 60), ('INTVL', 20), ('CNT', 3)):
    if option := getattr(socket, f'TCP_KEEP{name}', None):
      line.setsockopt(socket.IPPROTO_TCP, option, value)


def _exactly(line: socket.socket, size: int) -> bytes:
  found = b''
  while len(found) < size and (more := line.recv(size - len(found))):
    found += more
  return found


@functools.cache
def _one_of_each() -> Mesh:
  """A mesh of the first device of each process."""
  devices = {}
  for device in jax.devices():
    devices.setdefault(device.process_index, device)
  return Mesh(np.array([devices[k] for k in range(count())]), (_AXIS,))


@functools.partial(jax.jit, static_argnums=0)
def _swap(mesh: Mesh, sent: jax.Array) -> jax.Array:
  swap = lambda own: jax.lax.all_to_all(own, _AXIS, 1, 1, tiled=True)
  return jax.shard_map(
    swap, mesh=mesh, in_specs=Spec(_AXIS), out_specs=Spec(_AXIS)
  )(sent)


def exchanged(parts: Sequence[bytes]) -> list[bytes]:
  """What each process has for this one, which has `parts` for each of them."""
  if count() == 1:
    return list(parts)
  mesh = _one_of_each()
  sharding = NamedSharding(mesh, Spec(_AXIS))

  def swapped(own: np.ndarray) -> np.ndarray:
    sent = jax.make_array_from_process_local_data(sharding, own[None])
    return np.asarray(_swap(mesh, sent).addressable_shards[0].data)[0]

  longest = max(map(len, parts))
  sizes = np.array([[len(part), longest] for part in parts], np.int64)
  sizes = swapped(sizes.view(np.uint8)).view(np.int64)
  longest = int(sizes[:, 1].max())
  piece = _SMALL if longest <= _SMALL else _PIECE
  found = [io.BytesIO() for _ in parts]
  for start in range(0, longest, piece):
    own = np.zeros((len(parts), piece), np.uint8)
    for row, part in zip(own, parts, strict=True):
      cut = np.frombuffer(part[start : start + piece], np.uint8)
      row[: len(cut)] = cut
    for into, row in zip(found, swapped(own), strict=True):
      into.write(row.tobytes())
  return [
    into.getvalue()[:size]
    for into, size in zip(found, sizes[:, 0], strict=True)
  ]


def gathered(own: bytes) -> list[bytes]:
  """What all processes have."""
  return exchanged([own] * count())


def among() -> exchange.Among | None:
  """What `formats.read` needs to know of the others; None without any."""
  if count() == 1:
    return None
  return exchange.Among(jax.process_index(), count(), exchanged)


def owned(ratings: Ratings) -> Ratings:
  """Of ratings that all processes have, those of this one's users."""
  if count() == 1:
    return ratings
  same = (
    *exchange.columns(ratings).values(),
    ratings.user_ids,
    ratings.item_ids,
  )
  check_same({'ratings': files.sha256(*same)})
  owner = exchange.owners(ratings.user_ids, count())
  own = owner[ratings.user] == jax.process_index()
  if not own.any():
    raise DataError(
      f'{ratings.name}: none of its users are for process '
      f'{jax.process_index()} of {count()}; use fewer processes'
    )
  return ratings.take(own)


def at_home(ratings: Ratings, mesh: Mesh | None) -> Ratings:
  """Of all processes' ratings those of the users that this one's devices have.

  Until here users belonged to processes by a hash of their ids, since nobody
  knew all ids; tables are cut by users' numbers.
  """
  if count() == 1 or mesh is None:
    return ratings
  process = np.array([device.process_index for device in mesh.devices.flat])
  owner = process[homes_of(ratings.user, ratings.num_users, mesh)]
  parts = [ratings.take(owner == number) for number in range(count())]
  found = exchanged([exchange.packed(exchange.columns(part)) for part in parts])
  own = exchange.with_columns(ratings, map(exchange.unpacked, found))
  if not len(own):
    raise DataError(
      f'{ratings.name}: none of its ratings are for process '
      f'{jax.process_index()} of {count()}; use fewer processes'
    )
  return own


def on_first(tree: Any, data: Data) -> Any:
  """`tree` in the first process's memory, with the rows of all processes.

  In the others what all devices have, and None for tables that are spread.
  """

  def fetched(leaf: Any, num_rows: int | None = None) -> np.ndarray | None:
    if not isinstance(leaf, jax.Array) or leaf.is_fully_replicated:
      return np.asarray(leaf)
    shards = sorted(
      leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0
    )
    own = np.concatenate([np.asarray(shard.data) for shard in shards])
    parts = exchanged([own.tobytes(), *[b''] * (count() - 1)])
    if not first():
      return None
    rows = np.frombuffer(b''.join(parts), own.dtype)
    return rows.reshape(-1, *own.shape[1:])[:num_rows]

  users, items = (rows.num_rows for rows in data)
  if count() == 1:
    if data.by_item.items == 'everywhere':
      return tree
    return map_tables(tree, item=lambda table: np.asarray(table)[:items])
  return map_tables(
    tree,
    user=lambda table: fetched(table, users),
    item=lambda table: fetched(table, items),
    others=fetched,
  )


def kept(due: bool, state: Any, *, data: Data) -> Any:
  """`on_first` of the state, if it is `due` there, and else None."""
  if count() > 1:
    due = gathered(b'due' if due else b'')[0] == b'due'
  return on_first(state, data) if due else None


def whole(ratings: Ratings) -> Ratings:
  """All ratings, in the first process; its own in the others."""
  if count() == 1:
    return ratings
  nothing = [b''] * (count() - 1)
  found = exchanged([exchange.packed(exchange.columns(ratings)), *nothing])
  if not first():
    return ratings
  return exchange.with_columns(ratings, map(exchange.unpacked, found))


def alike(values: np.ndarray) -> bool:
  """Whether all values of all processes are the same."""
  ends = np.array([values.min(), values.max()]).tobytes()
  return len(set(gathered(ends))) == 1 and values.min() == values.max()


def digest(own: str) -> str:
  """A hash of the hashes that all processes have of their ratings."""
  if count() == 1:
    return own
  return files.sha256(b''.join(gathered(own.encode())))


def check_same(facts: Mapping[str, Any]) -> None:
  """Raises ValueError where processes differ in what they should not."""
  if count() == 1:
    return
  own = json.loads(json.dumps(facts))
  for number, other in enumerate(
    map(json.loads, gathered(json.dumps(own).encode()))
  ):
    for name in sorted(own.keys() | other.keys()):
      if own.get(name) != other.get(name):
        raise ValueError(
          f'process {jax.process_index()} has {name}={own.get(name)!r}, and '
          f'process {number} has {other.get(name)!r}: give all processes the '
          'same settings and files'
        )


def of_first(
  key: jax.Array,
  run: str,
  start: tuple[int, Any] | None,
  like: Callable[[], Any],
) -> tuple[jax.Array, str, tuple[int, Any] | None]:
  """The key, the id and the start that the first process has.

  `like` makes the structure of a state.
  """
  if count() == 1:
    return key, run, start
  own = b''
  if first():
    step, state = start or (0, ())
    arrays = {f'leaf {k}': x for k, x in enumerate(jax.tree.leaves(state))}
    facts = [run, keys.source_of(key), None if start is None else step]
    own = exchange.packed(
      {'key': keys.key_words(key), **arrays}, json.dumps(facts)
    )
  arrays, text = exchange.unpacked(gathered(own)[0])
  if first():
    return key, run, start
  run, source, step = json.loads(text)
  key = keys.words_key(arrays['key'], source)
  if step is None:
    return key, run, None
  tree = jax.tree.structure(like())
  leaves = [arrays[f'leaf {k}'] for k in range(tree.num_leaves)]
  return key, run, (step, tree.unflatten(leaves))
