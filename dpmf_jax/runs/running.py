"""The steps of a run, charged before the first, and kept on the way."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from dpmf_jax import certificates, keys
from dpmf_jax.accounting import ledger as ledgers
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data
from dpmf_jax.runs import folders, logs, processes, recording
from dpmf_jax.runs.choosing import Chosen
from dpmf_jax.training import fit, in_float32


def spending(
  chosen: Chosen,
  ratings: Ratings,
  key: jax.Array,
  ledger: str | Path | None,
  budget: Any,
  output: str | Path | None,
) -> Callable[..., Any] | None:
  """What puts this run into the ledger; None without one."""
  if ledger is None:
    if budget is not None:
      raise ValueError(
        f'budget_epsilon={budget} needs a ledger, where what is spent is put '
        'down'
      )
    return None
  if (source := keys.source_of(key)) != certificates.ENTROPY:
    raise ValueError(
      f'the key is for experiments ({source}): noise that whoever knows it can '
      'remove is no protection that a ledger could count; leave one of them out'
    )
  guarantee = chosen.system.guarantee
  return functools.partial(
    ledgers.spend,
    ledger,
    ledgers.proved_event(guarantee),
    budget_epsilon=budget,
    delta=chosen.delta or 0.0,
    unit=guarantee.unit,
    relation=guarantee.relation,
    dataset=ratings.name,
    digest=processes.digest(folders.digest(ratings)),
    system=chosen.name,
    variant=chosen.variant,
    what=os.path.abspath(output) if output else 'a run without a folder',
  )


def fitted(
  chosen: Chosen,
  data: Data,
  recorder: recording.Recorder,
  key: jax.Array,
  *,
  folder: Path | None,
  overwrite: bool,
  identity: dict[str, Any],
  spend: Callable[..., Any] | None,
  report_every: int,
  checkpoint_seconds: float,
  curves: str | Path | None,
  tensorboard: str | Path | None,
  progress: bool,
) -> tuple[jax.Array, str]:
  """The key and the id of the run, when all steps are done and recorded.

  Both are those of the interrupted run in `folder`, if there is one.
  """
  made, run_id = chosen.system, folders.run_id(None)
  start, callbacks = None, []
  if folder is not None:
    key, start = folders.restore(
      folder, made, data, key, identity, overwrite=overwrite
    )
    if start and progress:
      print(f'going on from step {start[0]} of {made.steps}')
    if overwrite and not start:
      if spend:
        spend(dry_run=True)  # before the run that was there is gone
      folders.clear(folder)
    run_id = folders.run_id(folder)
  like = lambda: jax.eval_shape(lambda key: made.init(key, data), key)
  key, run_id, start = processes.of_first(key, run_id, start, like)
  kept = functools.partial(processes.kept, data=data)
  if folder is None:
    callbacks.append(lambda report: kept(False, report.state))
  else:
    callbacks.append(
      folders.checkpointer(
        folder,
        key,
        identity,
        run=run_id,
        steps=made.steps,
        seconds=checkpoint_seconds,
        kept=kept,
      )
    )
  if start is None:
    keys.begin(key)
  if spend and processes.first():
    charge = functools.partial(spend, entry_id=run_id)
    callbacks.append(folders.charger(folder, charge, fresh=start is None))
  # The other half drew masks for releases once: steps keep their noise.
  with in_float32():  # as in `fit`: one program
    fit_key, _ = jax.random.split(key)
  bar, show = recording.progress(
    chosen.plan, recorder.curve, delta=chosen.delta, disable=not progress
  )
  threading.Thread(target=_ready, args=(chosen, folder)).start()
  with bar, logs.logged(recorder.curve, curves, tensorboard) as log:
    fit(
      made,
      fit_key,
      data,
      report_every=report_every,
      callbacks=(*callbacks, recorder, log, show),
      start=start,
    )
  return key, run_id


def _ready(chosen: Chosen, folder: Path | None) -> None:
  """Has at hand what the end of a run needs, while steps are compiled.

  Modules that take a second to import, of what is drawn and of what is stated.
  """
  if folder is not None:
    for module in ('figure', 'backends.backend_agg'):
      importlib.import_module(f'matplotlib.{module}')
  if chosen.delta is not None:
    chosen.plan.epsilon(chosen.plan.steps, chosen.delta)
