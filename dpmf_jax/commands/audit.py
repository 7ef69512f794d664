"""Attacks what systems state about privacy, and prints what was measured.

All of them on tiny data sets, whole runs by the thousand:

  dpmf audit --system=all --mode=quick
  dpmf audit --system=gaussian_mf --variant=sound

A lower bound above the stated epsilon refutes it. Statements of papers are
expected to be refuted; exit code 1 means that another one was, or one that was
asked for with --variant.

One run on a data set of real size, with canaries in it:

  dpmf audit --system=gaussian_mf --canaries=2000 --dataset=ml-100k

A system of your own, in a module that registers it (`dpmf_jax.register`):

  dpmf audit --plugin=my_module --system=my_system

A search for data and settings that are worse than those in the library:

  dpmf audit --system=gaussian_mf --variant=paper --search=60
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from absl import flags

from dpmf_jax import plans
from dpmf_jax.commands import declaring, plugins
from dpmf_jax.plans import selection

# What the help of --mode says.
RUNS = {'quick': 20_000, 'full': 200_000}

flags.adopt_module_key_flags(plugins)


class _Declared:
  """What to attack, and how.

  Attributes:
    system: Which system to attack, or all of them.
    variant: Which variant of it; all by default.
    mode: How many runs on each data set of a pair: quick 20,000, full 200,000
    runs: That many runs instead of what --mode says.
    confidence: In all lower bounds of a variant together.
    output: File for all findings as JSON; - for stdout.
    seed: For runs that can be repeated; random by default.
    search: Seconds to search each variant for worse cases.
    found: File to add what the search finds to; dpmf_jax/auditing/found.json is
      tried in every audit.
    canaries: Number of canaries for one run on --dataset instead.
    dataset: For --canaries.
    data_dir: Where data sets are looked for first.
    epsilon: Of the run with --canaries.
    devices: Devices to use; all by default, on a CPU one per core.
    delta: Of the run with --canaries.
  """

  system: str = 'all'
  variant: str | None = None
  mode: Literal['quick', 'full'] = 'full'
  runs: Annotated[int | None, {'lower_bound': 400}] = None
  confidence: Annotated[
    float, {'lower_bound': 0.5, 'upper_bound': 0.999999}
  ] = 0.999
  output: str = 'audit.json'
  seed: int | None = None
  search: Annotated[float | None, {'lower_bound': 1.0}] = None
  found: str | None = None
  canaries: Annotated[int | None, {'lower_bound': 10}] = None
  dataset: str = 'ml-100k'
  data_dir: str | None = None
  epsilon: float = 4.0
  devices: int | None = None
  delta: float = 1e-05


_FLAGS = declaring.define(_Declared)


def main(argv) -> int:
  del argv
  import jax

  # One device per core: each makes its share of the runs.
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
  from dpmf_jax.auditing import results
  from dpmf_jax.keys import random_key

  chosen = _chosen()
  if _FLAGS.canaries:
    attack = functools.partial(_canary_findings, number=_FLAGS.canaries)
  elif _FLAGS.search:
    attack = functools.partial(_searched_findings, seconds=_FLAGS.search)
  else:
    attack = _pair_findings
  findings = list(attack(random_key(_FLAGS.seed), chosen))
  report = {
    **_summary(results.worst(findings)),
    'seed': _FLAGS.seed,
    'versions': {'jax': jax.__version__},
    'findings': [finding._asdict() for finding in findings],
  }
  table = (
    f'{results.table(findings)}\n'
    f'epsilon at delta = {findings[0].delta:g}; lower bounds of one variant '
    f'hold together with {100 * _FLAGS.confidence:g}% confidence'
  )
  if _FLAGS.output == '-':
    print(table, file=sys.stderr)
    print(json.dumps(report, indent=2))
  else:
    from dpmf_jax.files import write_json

    print(table)
    write_json(_FLAGS.output, report)
  wrong = [
    finding
    for finding in findings
    if finding.refuted and (finding.status != 'claimed' or _FLAGS.variant)
  ]
  return 1 if wrong else 0


def _chosen() -> list[tuple[str, str]]:
  """The systems and variants that the flags name."""
  known = [(n, v) for n, spec in plans.SPECS.items() for v in spec.variants]
  chosen = [
    (name, variant)
    for name, variant in known
    if _FLAGS.system in ('all', name) and _FLAGS.variant in (None, variant)
  ]
  if not chosen:
    names = ', '.join(f'{name} {variant}' for name, variant in known)
    also = f' with --variant={_FLAGS.variant}' if _FLAGS.variant else ''
    raise ValueError(
      f'there is no --system={_FLAGS.system}{also}; there are all, {names}'
    )
  return chosen


def _pair_findings(key, chosen) -> Iterator[Any]:
  import jax
  import tqdm

  from dpmf_jax import auditing
  from dpmf_jax.rows import device_mesh

  mesh = device_mesh(_FLAGS.devices)
  for place, (name, variant) in enumerate(chosen):
    with tqdm.tqdm(
      unit='run', unit_scale=True, desc=f'{name} {variant}', leave=False
    ) as bar:

      def progress(done, total, bar=bar):
        bar.total = total
        bar.update(done - bar.n)

      yield from auditing.audit(
        name,
        key=jax.random.fold_in(key, place),
        variant=variant,
        runs=_FLAGS.runs or RUNS[_FLAGS.mode],
        confidence=_FLAGS.confidence,
        mesh=mesh,
        progress=progress,
      ).findings


def _canary_findings(key, chosen, number: int) -> Iterator[Any]:
  import jax
  import tqdm

  from dpmf_jax import auditing
  from dpmf_jax.ratings import catalog
  from dpmf_jax.rows import device_mesh

  ratings = catalog.load(_FLAGS.dataset, data_dir=_FLAGS.data_dir)
  facts = {
    'scale': ratings.scale,
    'epsilon': _FLAGS.epsilon,
    'delta': _FLAGS.delta,
  }
  for place, (name, variant) in enumerate(tqdm.tqdm(chosen, unit='system')):
    fields = selection.fields(plans.SPECS[name])
    run_key, coin_key = jax.random.split(jax.random.fold_in(key, place))
    yield auditing.audit_canaries(
      run_key,
      name,
      variant,
      ratings,
      {field: fact for field, fact in facts.items() if field in fields},
      number=number,
      seed=int(jax.random.bits(coin_key)),
      confidence=_FLAGS.confidence,
      mesh=device_mesh(_FLAGS.devices),
    )


def _searched_findings(key, chosen, seconds: float) -> Iterator[Any]:
  """The worst case of each variant, measured with runs of its own."""
  import jax
  import tqdm

  from dpmf_jax import auditing
  from dpmf_jax.auditing import found, search
  from dpmf_jax.rows import device_mesh

  mesh = device_mesh(_FLAGS.devices)
  for number, (name, variant) in enumerate(chosen):
    search_key, run_key = jax.random.split(jax.random.fold_in(key, number))
    with tqdm.tqdm(total=seconds, unit='s', desc='searching') as bar:

      def progress(spent, best, bar=bar):
        bar.n = round(min(spent, seconds), 1)
        bar.set_postfix(epsilon=f'{best:.2f}')

      record = search.search(
        search_key,
        name,
        variant,
        auditing.cases(name, variant)[0],
        seconds=seconds,
        mesh=mesh,
        progress=progress,
      )
    if _FLAGS.found:
      found.add(record, pathlib.Path(_FLAGS.found))
    for other in plans.SPECS[name].variants:
      target = auditing.found_target(record, other)
      if target is not None:
        yield from auditing.findings(
          run_key,
          [target],
          runs=_FLAGS.runs or RUNS[_FLAGS.mode],
          confidence=_FLAGS.confidence,
          mesh=mesh,
        )


def _summary(worst: Any) -> dict[str, Any]:
  """Of the finding closest to, or farthest above, what is stated."""
  said = dict.fromkeys(('claimed', 'proved', 'stated'))
  if worst.stated is not None:
    said[worst.status] = worst.stated
  return {
    **said,
    'lower_bound': worst.lower_bound,
    'confidence': _FLAGS.confidence,
    'verdict': worst.verdict,
  }
