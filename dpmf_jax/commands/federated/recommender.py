"""Runs the recommender of a plan, over a network or on this host.

With Flower it is the ServerApp of federated/app. Without, for workers
on this host that listen on SOCKETS/0.sock, SOCKETS/1.sock, ...:

  dpmf federated.recommender --plan=plan.json --state=DIR \\
    --sockets=SOCKETS
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpmf_jax.commands import declaring


class _Declared:
  """Of which run this is the recommender.

  Attributes:
    plan: The run's plan.
    state: Folder of the recommender alone.
    sockets: Folder of workers' sockets.
    seed: FOR EXPERIMENTS: a fixed seed, that of the simulator.
    transcript: Keep all messages, in --state.
  """

  plan: str | None = None
  state: str | None = None
  sockets: str | None = None
  seed: int | None = None
  transcript: bool = False


_FLAGS = declaring.define(_Declared)


def run(
  plan_path: str,
  state: str,
  network: Callable,
  *,
  seed: int | None,
  transcript: bool,
) -> None:
  """Returns when all rounds are done; STATE/model has what may be published.

  `launch.recommend --model=STATE/model` serves from it. For sums its
  certificate says what is proved of them.

  Args:
    plan_path: of the run.
    state: folder of the recommender.
    network: (plan, journal) -> Exchange.
    seed: for experiments.
    transcript: whether to keep all messages.
  """
  from dpmf_jax.federated import parties
  from dpmf_jax.federated.journal import journal
  from dpmf_jax.federated.plan import read_plan
  from dpmf_jax.federated.statement import write_published

  plan = read_plan(plan_path)
  folder = Path(state)
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  book = journal(folder, transcript=transcript)
  exchange = network(plan, book)
  try:
    item = parties.recommender(plan, folder, exchange, book, seed=seed)
  except Exception as error:
    book.log('failed', why=f'{type(error).__name__}: {error}')
    raise
  write_published(folder / 'model', plan, item)
  book.log('written')


def main(argv) -> int:
  del argv
  from dpmf_jax.federated.asking import TooFewNodesError
  from dpmf_jax.federated.plan import AGGREGATOR
  from dpmf_jax.federated.sockets import local_exchange

  plan_path, state = _FLAGS.plan, _FLAGS.state
  if plan_path is None or state is None or _FLAGS.sockets is None:
    raise ValueError('--plan, --state and --sockets are needed')

  def network(plan, journal):
    del journal
    paths = {i: f'{_FLAGS.sockets}/{i}.sock' for i in range(len(plan.nodes))}
    paths[AGGREGATOR] = f'{_FLAGS.sockets}/aggregator.sock'
    return local_exchange(paths)

  try:
    run(
      plan_path,
      state,
      network,
      seed=_FLAGS.seed,
      transcript=_FLAGS.transcript,
    )
  except TooFewNodesError as error:
    print(f'stopped: {error}')
    return 1
  return 0
