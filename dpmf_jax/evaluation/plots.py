"""Pictures where people would rather look."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmf_jax.files import write_bytes


def axes_of(width: float = 7, height: float = 4.2) -> Any:
  """The axes of a new picture, in inches."""
  # Imported here: matplotlib takes half a second that other calls need not
  # wait for. Figure without pyplot needs no display and keeps no state.
  from matplotlib.figure import Figure

  return Figure(figsize=(width, height), layout='constrained').subplots()


def write(
  path: str | Path | io.BytesIO,
  axes: Any,
  *,
  x_label: str,
  y_label: str,
  title: str,
  mode: int | None = 0o600,
  **legend: Any,
) -> None:
  """Writes a PNG of labelled axes, by default for the curator's eyes only.

  What is computed from ratings without noise must not be published.
  """
  axes.set_xlabel(x_label)
  axes.set_ylabel(y_label)
  axes.set_title(title, fontsize=9)
  axes.grid(alpha=0.25)
  axes.legend(fontsize=8, **legend)
  picture = path if isinstance(path, io.BytesIO) else io.BytesIO()
  axes.figure.savefig(picture, format='png', dpi=120)
  if not isinstance(path, io.BytesIO):
    write_bytes(path, picture.getvalue(), mode=mode)


def learning_curve(
  path: str | Path | io.BytesIO,
  curve: Sequence[Mapping[str, Any]],
  baselines: Mapping[str, float],
  *,
  title: str,
) -> None:
  """Writes a PNG of train and test RMSE by step, with baselines as lines."""
  axes = axes_of()
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
  low = min([point['train_rmse'] for point in curve] + list(baselines.values()))
  margin = 0.1 * max(top - low, 0.05)
  # The first steps are far off; what matters is the range of the baselines.
  axes.set_ylim(low - margin, top + 3 * margin)
  write(
    path, axes, x_label='step', y_label='RMSE', title=title, loc='upper right'
  )


def lines(
  path: str | Path,
  x: Sequence[float],
  curves: Mapping[str, Sequence[float]],
  *,
  x_label: str,
  y_label: str,
  title: str,
) -> None:
  """Writes a PNG of labelled curves over the same `x`."""
  axes = axes_of()
  for (label, values), line in zip(
    curves.items(), itertools.cycle(('-', '--', '-.', ':')), strict=False
  ):
    axes.plot(x, values, marker='.', linestyle=line, label=label)
  write(path, axes, x_label=x_label, y_label=y_label, title=title)


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
  axes = axes_of(7, 4.6)
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
  axes.set_ylim(bottom=0)
  axes.margins(x=0.06)
  note = 'all curves are proved upper bounds'
  if claimed:
    note = (
      'dashed: a claim of the paper. solid: proved for the same noise,\n'
      'but only if nothing else leaked, which is not so for this algorithm'
    )
  write(
    path,
    axes,
    x_label='steps',
    y_label='epsilon',
    title=f'{title}\n{note}',
    mode=None,
    loc='lower right',
  )
