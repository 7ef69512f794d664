"""What is seen of a run while it trains: its curve, its model, a bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from dpmf_jax.evaluation.metrics import rmse
from dpmf_jax.homes import kept_items, whole_items
from dpmf_jax.plans.spec import Plan, Task
from dpmf_jax.rows import Data, Rows
from dpmf_jax.training import Progress
from dpmf_jax.types import Release, System


class Recorder:
  """A callback that keeps the model so far, and a curve of its errors.

  Privacy: both are computed from ratings without noise; they are for the
  curator only.

  Attributes:
    curve: step, RMSE and seconds of each report, and the round where it is the
      end of one.
    model: both sides, as of the last report; items as between programs.
  """

  curve: list[dict]
  model: Release

  def __init__(
    self,
    system: System,
    data: Data,
    test: Rows | None,
    scale: tuple[float, float],
    *,
    task: Task = 'rating',
    rounds: Callable[[int], int | None] = lambda steps: steps,
  ):
    self.curve = []
    self._rounds = rounds
    self._began = time.monotonic()
    self._system, self._data, self._scale = system, data, scale
    self._rows = {}
    if task == 'rating':  # scores of a ranking are no ratings
      self._rows['train_rmse'] = data.by_user
      if test is not None:
        self._rows['test_rmse'] = test

  def __call__(self, report: Progress) -> None:
    state = whole_items(report.state, self._data)
    model = self._system.model(state, self._data)
    errors = {
      name: rmse(model, rows, self._scale) for name, rows in self._rows.items()
    }
    # Clipped to the scale, an infinite prediction has a finite error; products
    # of finite factors may have none.
    leaves = jax.tree.leaves((model._replace(fit=None), errors))
    if not all(map(_is_finite, leaves)):
      raise ValueError(
        'training diverged: factors or their products are not finite after '
        f'step {report.step}; use a smaller step_size'
      )
    seconds = round(time.monotonic() - self._began, 3)
    done = self._rounds(report.step)
    number = {} if done is None else {'round': done}
    self.curve.append(
      {'step': report.step, **number, **errors, 'seconds': seconds}
    )
    self.model = kept_items(model, self._data)


def _is_finite(leaf: Any) -> bool:
  """Whether all of it is; on the host, where it has all: nothing to compile."""
  here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
  return bool((np if here else jnp).isfinite(leaf).all())


def progress(
  plan: Plan, curve: list[dict], *, delta: float | None, disable=False
) -> tuple[tqdm, Callable[[Progress], None]]:
  """A bar, and a callback that shows step, RMSE and epsilon so far on it."""
  bar = tqdm(
    total=plan.steps, unit='step', desc='training', disable=disable or None
  )

  def callback(report: Progress) -> None:
    if bar.disable:  # nobody sees an epsilon that takes a second at first
      return
    bar.update(report.step - bar.n)
    shown = {
      name.removesuffix('_rmse'): f'{value:.4f}'
      for name, value in (curve[-1] if curve else {}).items()
      if name.endswith('_rmse')
    }
    spent = None if delta is None else plan.epsilon(report.step, delta)
    if spent is not None:
      shown['epsilon'] = f'{spent:.3g}'
    bar.set_postfix(shown)

  return bar, callback
