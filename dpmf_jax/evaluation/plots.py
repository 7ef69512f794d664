"""Pictures where people would rather look."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmf_jax.files import write_bytes


def learning_curve(
  path: str | Path,
  curve: Sequence[Mapping[str, Any]],
  baselines: Mapping[str, float],
  *,
  title: str,
) -> None:
  """Writes a PNG of train and test RMSE by step, with baselines as lines."""
  # Imported here: matplotlib takes half a second that other calls need not
  # wait for. Figure without pyplot needs no display and keeps no state.
  from matplotlib.figure import Figure

  figure = Figure(figsize=(7, 4.2), layout='constrained')
  axes = figure.subplots()
  steps = [point['step'] for point in curve]
  top = max(baselines.values(), default=0.0)
  for name, label in (('train_rmse', 'training'), ('test_rmse', 'held out')):
    values = [point[name] for point in curve if name in point]
    if values:
      axes.plot(steps, values, marker='.', label=label)
      top = max(top, values[-1])
  for number, (name, value) in enumerate(baselines.items()):
    axes.axhline(
      value,
      linestyle=(0, (4, 1 + number)),
      linewidth=1,
      color=f'C{number + 2}',
      label=f'{name.replace("_", " ")} {value:.3f}',
    )
  axes.set_xlabel('step')
  axes.set_ylabel('RMSE')
  axes.set_title(title, fontsize=10)
  low = min([point['train_rmse'] for point in curve] + list(baselines.values()))
  margin = 0.1 * max(top - low, 0.05)
  # The first steps are far off; what matters is the range of the baselines.
  axes.set_ylim(low - margin, top + 3 * margin)
  axes.legend(fontsize=8, loc='upper right')
  picture = io.BytesIO()
  figure.savefig(picture, format='png', dpi=120)
  # For the curator: the curve is computed from ratings without noise.
  write_bytes(path, picture.getvalue(), mode=0o600)


def lines(
  path: str | Path,
  x: Sequence[float],
  curves: Mapping[str, Sequence[float]],
  *,
  x_label: str,
  y_label: str,
  title: str,
) -> None:
  """Writes a PNG of labelled curves over the same `x`.

  For the curator, like all that is computed from ratings without noise.
  """
  from matplotlib.figure import Figure  # here, as above

  figure = Figure(figsize=(7, 4.2), layout='constrained')
  axes = figure.subplots()
  for (label, values), line in zip(
    curves.items(), itertools.cycle(('-', '--', '-.', ':')), strict=False
  ):
    axes.plot(x, values, marker='.', linestyle=line, label=label)
  axes.set_xlabel(x_label)
  axes.set_ylabel(y_label)
  axes.set_title(title, fontsize=10)
  axes.grid(alpha=0.25)
  axes.legend(fontsize=8)
  picture = io.BytesIO()
  figure.savefig(picture, format='png', dpi=120)
  write_bytes(path, picture.getvalue(), mode=0o600)


def error_cdf(
  path: str | Path,
  errors: Sequence[float],
  curves: Mapping[str, Sequence[float]],
  *,
  title: str,
) -> None:
  """Writes a PNG of the share of ratings within each error, by label."""
  lines(
    path,
    errors,
    curves,
    x_label='absolute error of a prediction',
    y_label='share of ratings with at most that error',
    title=title,
  )


def step_grid(steps: int, points: int = 60) -> list[int]:
  """At most `points` whole numbers from 1 to `steps`, denser at the start."""
  # Squares, since epsilon starts like a square root.
  last = max(points - 1, 1)
  spread = {1 + round((steps - 1) * (k / last) ** 2) for k in range(points)}
  return sorted(spread | {steps})


def epsilon_by_steps(
  path: str | Path,
  steps: Sequence[int],
  *,
  proved: Mapping[str, Sequence[float]],
  claimed: Mapping[str, Sequence[float]],
  title: str,
) -> None:
  """Writes a PNG of epsilon against steps, claims apart from what is proved.

  Claims are dashed and red, and a line under the title says what they are.
  """
  from matplotlib.figure import Figure  # here, as above

  figure = Figure(figsize=(7, 4.6), layout='constrained')
  axes = figure.subplots()
  for (label, values), colour in zip(
    proved.items(), ('#8fb3d9', '#4079b5', '#173f6b'), strict=False
  ):
    text = f'{label} (same noise)' if claimed else f'{label} (proved)'
    # Dots where there are too few steps for a line.
    mark = '.' if len(steps) < 10 else ''
    axes.plot(
      steps, values, color=colour, linewidth=2.4, marker=mark, label=text
    )
    axes.annotate(
      f'{values[-1]:.3g}',
      (steps[-1], values[-1]),
      xytext=(4, 0),
      textcoords='offset points',
      va='center',
      fontsize=8,
      color=colour,
    )
  for label, values in claimed.items():
    axes.plot(
      steps,
      values,
      color='#b3261e',
      linestyle=(0, (4, 3)),
      linewidth=1.4,
      label=f'{label} (not a guarantee)',
    )
  axes.set_xlabel('steps')
  axes.set_ylabel('epsilon')
  axes.set_ylim(bottom=0)
  axes.margins(x=0.06)
  note = 'all curves are proved upper bounds'
  if claimed:
    note = (
      'dashed: a claim of the paper. solid: proved for the same noise,\n'
      'but only if nothing else leaked, which is not so for this algorithm'
    )
  axes.set_title(f'{title}\n{note}', fontsize=9)
  axes.legend(fontsize=8, loc='lower right')
  axes.grid(alpha=0.25)
  picture = io.BytesIO()
  figure.savefig(picture, format='png', dpi=120)
  write_bytes(path, picture.getvalue())


def roc(path: str | Path, curves: Mapping[str, Any], *, title: str) -> None:
  """Writes a PNG of `auditing.value_channel.Curve`s by label."""
  from matplotlib.figure import Figure  # here, as above

  figure = Figure(figsize=(5, 4.6), layout='constrained')
  axes = figure.subplots()
  axes.plot(
    [0, 1], [0, 1], color='#999999', linewidth=1, label='a guess, 0.500'
  )
  for label, curve in curves.items():
    axes.plot(
      curve.false_positive,
      curve.true_positive,
      label=f'{label}, {curve.area:.3f}',
    )
  axes.set_xlabel('unrated items taken for rated')
  axes.set_ylabel('rated items found')
  axes.set_title(title, fontsize=9)
  axes.legend(fontsize=8, loc='lower right', title='area under the curve')
  axes.grid(alpha=0.25)
  picture = io.BytesIO()
  figure.savefig(picture, format='png', dpi=120)
  # An attack on real ratings tells about them.
  write_bytes(path, picture.getvalue(), mode=0o600)
