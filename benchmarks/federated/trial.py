"""Runs a recommender, an aggregator and nodes on this host, as a trial.

  python -m benchmarks.federated.trial --dataset=ml-100k --system=sdmf \\
    --nodes=4 --rounds=100 --epsilon=2 --output=runs/trial

splits the ratings by user into a file for each node, starts all parties as
processes that talk over Flower (pip install -r requirements-federated.txt) or,
with --transport=local, over sockets, waits for all rounds and stops them. The
folder gets metrics.json (held-out error, bytes of all messages, what was asked
again or left out, and of sums what is proved against whom), plan.json,
recommender/ with its log, and a folder for each node.

The trial itself reads what nodes keep, to measure accuracy; in a deployment
nobody can. docs/howto/federation.md says how to start each party on a host of
its own.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from absl import flags

from dpmf_jax.commands import cli, declaring, sources

flags.adopt_module_key_flags(sources)


class _Declared:
  """What to run, and where.

  Attributes:
    system: What to run.
    nodes: How many nodes.
    variant: untrusted_pmf: one proved sum, or rounds of gradients as published.
    online: untrusted_pmf, paper: chance of a user to be in a round (dynamic
      users); by default all are in every round (static users).
    rounds: How many rounds, but for sums.
    rank: Number of factors, but for sums.
    epsilon: Epsilon; for sdmf its eps_P.
    colluders: untrusted_pmf: how many users may collude; by default, and at
      least, as many as the largest node has, since it knows all of their shares
      of noise.
    dropouts: untrusted_pmf: how many users may be missing in the sum; a node
      that is missing takes all of its users with it.
    test_fraction: Part of the ratings held out to measure accuracy.
    seed: FOR EXPERIMENTS: a seed that all parties share.
    transport: What carries messages.
    attempts: How often a node is asked.
    seconds: Length of an attempt.
    kill: PARTY:ROUND pairs, with a node or aggregator: kill it once that many
      rounds are done, and start it again, to see that the run goes on.
    transcript: Keep all messages, and search them for secrets.
    patience: Seconds without any progress before the trial gives up.
    output: Folder to write.
    overwrite: Replace what is there.
  """

  system: Literal['sdmf', 'untrusted_pmf'] = 'sdmf'
  nodes: Annotated[int, {'lower_bound': 1}] = 4
  variant: Literal['sound', 'paper'] = 'sound'
  online: float | None = None
  rounds: int = 100
  rank: int = 50
  epsilon: float = 2.0
  colluders: int | None = None
  dropouts: int = 0
  test_fraction: float = 0.2
  seed: int | None = None
  transport: Literal['flower', 'local'] = 'flower'
  attempts: int = 5
  seconds: float = 120.0
  kill: Sequence[str] = ()
  transcript: bool = False
  patience: float = 900.0
  output: str
  overwrite: bool = False


_FLAGS = declaring.define(_Declared)


def _settings() -> dict[str, Any]:
  """The system's settings from the flags."""
  common: dict[str, Any] = {'epsilon': _FLAGS.epsilon}
  published = (_FLAGS.system, _FLAGS.variant) == ('untrusted_pmf', 'paper')
  if _FLAGS.online is not None and not published:
    raise ValueError('--online is for --system=untrusted_pmf --variant=paper')
  if _FLAGS.system == 'sdmf':
    return common | {'rank': _FLAGS.rank, 'steps': _FLAGS.rounds}
  if _FLAGS.variant == 'paper':
    if _FLAGS.online is not None:
      common |= {'attendance': 'dynamic', 'online': _FLAGS.online}
    return common | {
      'variant': 'paper',
      'relation': 'replace',
      'rank': _FLAGS.rank,
      'rounds': _FLAGS.rounds,
    }
  if _FLAGS.colluders is not None:
    common['colluders'] = _FLAGS.colluders
  return common | {
    'variant': 'sound',
    'relation': 'add_remove',
    'dropouts': _FLAGS.dropouts,
  }


def main(argv) -> int:
  del argv
  from benchmarks.federated import parties, results, transcripts
  from benchmarks.federated.processes import processes
  from dpmf_jax.federated import preparation
  from dpmf_jax.federated.journal import bytes_table, read_log
  from dpmf_jax.ratings.splits import random_split

  folder = Path(_FLAGS.output).resolve()
  if folder.exists() and not _FLAGS.overwrite:
    raise ValueError(f'{folder} exists; pass --overwrite to replace it')
  if folder.exists() and not (folder / 'plan.json').exists():
    raise ValueError(f'{folder} is not the folder of a trial: left alone')
  kills = _kills()
  train, test = random_split(sources.load(), _FLAGS.test_fraction, seed=0)
  plan = preparation.planned(
    train,
    system=_FLAGS.system,
    nodes=_FLAGS.nodes,
    settings=_settings(),
    attempts=_FLAGS.attempts,
    seconds=_FLAGS.seconds,
  )
  if folder.exists():
    shutil.rmtree(folder)
  folder.mkdir(parents=True, mode=0o700)
  plan = preparation.prepared(folder, train, plan)
  began = time.monotonic()
  # Unix sockets have short names.
  with (
    tempfile.TemporaryDirectory(prefix='dpmf') as sockets,
    processes(folder) as running,
  ):
    settings = parties.Settings(
      folder=folder,
      sockets=Path(sockets),
      flower=_FLAGS.transport == 'flower',
      seed=_FLAGS.seed,
      transcript=_FLAGS.transcript,
    )
    parties.start_all(running, plan, settings)
    done = _watched(running, plan, settings, kills)
  log = read_log(folder / 'recommender' / 'state')
  report = {
    'note': 'computed from the ratings without noise, by the trial',
    'system': plan.system,
    'transport': _FLAGS.transport,
    'nodes': len(plan.nodes),
    'finished': done,
    'seconds': round(time.monotonic() - began, 3),
    'bytes': bytes_table(folder / 'recommender' / 'state'),
    'events': results.event_counts(log),
  }
  if plan.sums:
    report['privacy'] = _privacy(plan)
  if done:
    report |= results.accuracy(folder, plan, train, test, seed=_FLAGS.seed)
  if done and _FLAGS.transcript:
    report['transcript'] = transcripts.transcript_findings(
      folder, plan, train, results.states_of_nodes(folder, plan)
    )
  (folder / 'metrics.json').write_text(json.dumps(report, indent=2) + '\n')
  print(json.dumps(report, indent=2))
  return 0 if done else 1


def _privacy(plan) -> dict[str, Any]:
  """What is proved of the sums, and against whom, for the report."""
  from dpmf_jax.federated.statement import certificate_of

  document = certificate_of(plan)
  names = ('status', 'epsilon', 'delta', 'unit', 'relation', 'adversary')
  return {name: document[name] for name in names} | {
    'colluders': plan.config.colluders,
    'dropouts': plan.config.dropouts,
    'largest_node': plan.largest_node,
  }


def _kills() -> list[tuple[str, int]]:
  """(party, round) of those to kill, in order of rounds."""
  names = ['aggregator', *(str(i) for i in range(_FLAGS.nodes))]
  found = []
  for word in _FLAGS.kill:
    party, _, round = word.partition(':')
    if party not in names or not round.isdigit():
      raise ValueError(
        f'--kill={word} must be PARTY:ROUND, with a party of {names}'
      )
    found.append((party, int(round)))
  return sorted(found, key=lambda kill: kill[1])


def _watched(running, plan, settings, kills) -> bool:
  """Whether the run finished; kills nodes on the way where asked to."""
  import tqdm

  from benchmarks.federated import parties
  from dpmf_jax.federated.journal import read_log

  config = plan.config
  rounds = config.steps if plan.system == 'sdmf' else config.rounds
  rounds = 1 if plan.sums else rounds
  state = settings.folder / 'recommender' / 'state'
  seen, done, moved = 0, 0, time.monotonic()
  with tqdm.tqdm(total=rounds, unit='round') as bar:
    while time.monotonic() - moved < _FLAGS.patience:
      time.sleep(0.3)
      # What ended is looked at first, so that its last lines are in the log.
      ended = running.ended()
      log = read_log(state) if (state / 'log.jsonl').exists() else []
      for line in log[seen:]:
        moved = time.monotonic()
        if line['event'] == 'round done':
          done += 1
          bar.update(1)
        if line['event'] == 'written':
          return True
        if line['event'] == 'failed':
          print(f'the recommender failed: {line["why"]}')
          return False
      if ended:
        running.check()  # which raises, and says what ended
      seen = len(log)
      if kills and log and done >= kills[0][1]:
        parties.restart(running, settings, kills.pop(0)[0])
  print(f'nothing happened for {_FLAGS.patience:g} seconds')
  return False


if __name__ == '__main__':
  cli.run(main)
