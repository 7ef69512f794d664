"""Commands that start the parties of a trial on this host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.federated.processes import APP, Processes, free_port
from dpmf_jax.federated.plan import AGGREGATOR, Plan

_SUPERLINK = 'superlink'


class Settings(NamedTuple):
  """How a trial is set up."""

  folder: Path
  sockets: Path
  flower: bool
  seed: int | None
  transcript: bool


Worker = tuple[str, ...]
_WORKER: Worker = ('-m', 'launch.federated.worker')


def start_all(
  running: Processes,
  plan: Plan,
  settings: Settings,
  workers: Mapping[int, Worker] | None = None,
) -> None:
  """Starts the network, if any, all workers and the recommender.

  `workers` has the arguments of Python for parties that run another program.
  """
  workers = workers or {}
  if settings.flower:
    _start_superlink(running, settings)
  for number in range(len(plan.nodes)):
    worker = workers.get(number, _WORKER)
    start_node(running, settings, number, worker)
  if plan.system == 'untrusted_pmf':
    start_aggregator(running, settings, workers.get(AGGREGATOR, _WORKER))
  if settings.flower:
    _submit(running, settings)
  else:
    running.start('recommender', _recommender(settings))


def start_node(
  running: Processes,
  settings: Settings,
  number: int,
  worker: Worker = _WORKER,
) -> None:
  """Starts a node's worker and, with Flower, its SuperNode."""
  folder = settings.folder / f'node-{number}'
  running.start(
    f'node-{number}',
    [
      sys.executable,
      *worker,
      *_common(settings),
      f'--number={number}',
      f'--ratings={folder / "ratings.csv"}',
      f'--user_ids={folder / "users.json"}',
      f'--state={folder / "state"}',
      f'--socket={settings.sockets / f"{number}.sock"}',
      *_seed(settings),
    ],
  )
  if settings.flower:
    _start_supernode(running, settings, f'node-{number}', number, str(number))


def start_aggregator(
  running: Processes, settings: Settings, worker: Worker = _WORKER
) -> None:
  """Starts the third party's worker and, with Flower, its SuperNode."""
  running.start(
    'aggregator',
    [
      sys.executable,
      *worker,
      *_common(settings),
      '--role=aggregator',
      f'--state={settings.folder / "aggregator" / "state"}',
      f'--socket={settings.sockets / "aggregator.sock"}',
    ],
  )
  if settings.flower:
    _start_supernode(running, settings, 'aggregator', AGGREGATOR, 'aggregator')


def restart(running: Processes, settings: Settings, party: str) -> None:
  """Kills all processes of 'aggregator' or a node, and starts them again."""
  node = party != 'aggregator'
  name = f'node-{party}' if node else party
  for process in (name, f'{name}-supernode'):
    if process in running.running:
      running.kill(process)
  if node:
    start_node(running, settings, int(party))
  else:
    start_aggregator(running, settings)


def _common(settings: Settings) -> list[str]:
  return [
    f'--plan={settings.folder / "plan.json"}',
    f'--transcript={str(settings.transcript).lower()}',
  ]


def _seed(settings: Settings) -> list[str]:
  return [] if settings.seed is None else [f'--seed={settings.seed}']


def _recommender(settings: Settings) -> list[str]:
  return [
    sys.executable,
    '-m',
    'launch.federated.recommender',
    *_common(settings),
    f'--state={settings.folder / "recommender" / "state"}',
    f'--sockets={settings.sockets}',
    *_seed(settings),
  ]


def _start_superlink(running: Processes, settings: Settings) -> None:
  port = free_port()
  (settings.sockets / 'port').write_text(str(port))
  home = settings.folder / 'flower' / _SUPERLINK
  home.mkdir(parents=True)
  (home / 'config.toml').write_text(
    '[superlink]\ndefault = "trial"\n\n[superlink.trial]\n'
    f'address = "127.0.0.1:{port}"\ninsecure = true\n'
  )
  running.start(
    _SUPERLINK,
    [
      'flower-superlink',
      '--insecure',
      '--host=127.0.0.1',
      f'--port={port}',
      '--disable-runtime-dependency-installation',
    ],
    FLWR_HOME=str(home),
  )


def _start_supernode(
  running: Processes, settings: Settings, name: str, number: int, socket: str
) -> None:
  port = int((settings.sockets / 'port').read_text())
  home = settings.folder / 'flower' / name
  home.mkdir(parents=True, exist_ok=True)
  path = settings.sockets / f'{socket}.sock'
  running.start(
    f'{name}-supernode',
    [
      'flower-supernode',
      '--insecure',
      f'--superlink=127.0.0.1:{port}',
      '--host=127.0.0.1',
      f'--port={free_port()}',
      f'--node-config=number={number} socket="{path}"',
    ],
    FLWR_HOME=str(home),
  )


def _submit(running: Processes, settings: Settings) -> None:
  """Hands the recommender over to the SuperLink, once that listens."""
  seed = -1 if settings.seed is None else settings.seed
  config = (
    f'plan="{settings.folder / "plan.json"}" '
    f'state="{settings.folder / "recommender" / "state"}" '
    f'seed={seed} transcript={str(settings.transcript).lower()}'
  )
  running.submit(
    ['flwr', 'run', str(APP), 'trial', '--run-config', config],
    port=int((settings.sockets / 'port').read_text()),
    FLWR_HOME=str(settings.folder / 'flower' / _SUPERLINK),
  )
