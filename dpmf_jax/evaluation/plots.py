"""Pictures where people would rather look."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dpmf_jax import accounting
from dpmf_jax.files import write_bytes
from dpmf_jax.types import Guarantee


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
  save(path, axes, mode)


def save(
  path: str | Path | io.BytesIO, axes: Any, mode: int | None = 0o600
) -> None:
  """Writes a PNG of the figure that `axes` are of, as it is."""
  from PIL import Image

  drawn = io.BytesIO()
  axes.figure.savefig(drawn, format='png', dpi=120)
  picture = path if isinstance(path, io.BytesIO) else io.BytesIO()
  # Few colours are in use: with a palette it takes a third of the bytes.
  small = Image.open(drawn).convert('RGB').quantize(256)
  small.save(picture, 'png', optimize=True)
  if not isinstance(path, io.BytesIO):
    write_bytes(path, picture.getvalue(), mode=mode)


def learning_curve(
  path: str | Path | io.BytesIO,
  curve: Sequence[Mapping[str, Any]],
  baselines: Mapping[str, float],
  *,
  title: str,
) -> None:
  """Writes a PNG of train and test RMSE by round, with baselines as lines.

  Points within a round, after the users and before the items, are left out.
  """
  axes = axes_of()
  curve = [point for point in curve if 'round' in point]
  rounds = [point['round'] for point in curve]
  alike = all(point['round'] == point['step'] for point in curve)
  top = max(baselines.values(), default=0.0)
  for name, label in (('train_rmse', 'training'), ('test_rmse', 'held out')):
    values = [point[name] for point in curve if name in point]
    if values:
      axes.plot(rounds, values, marker='.', label=label)
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
    path,
    axes,
    x_label='steps' if alike else 'rounds (over all users, then all items)',
    y_label='RMSE, in points of the rating scale',
    title=title,
    loc='upper right',
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
    x_label='absolute error of a prediction, in points of the rating scale',
    y_label='share of ratings with at most that error',
    title=title,
  )


def step_grid(steps: int, points: int = 60) -> list[int]:
  """At most `points` whole numbers from 1 to `steps`, denser at the start."""
  # Squares, since epsilon starts like a square root.
  last = max(points - 1, 1)
  spread = {1 + round((steps - 1) * (k / last) ** 2) for k in range(points)}
  return sorted(spread | {steps})


def bounds_shown(
  guarantee_or_event: accounting.Accountable, delta: float
) -> dict[str, float]:
  """Epsilons at `delta` by the labels of their curves; the smallest is last."""
  found = accounting.bounds(guarantee_or_event, delta)
  named = {
    'renyi_mironov': 'RDP, Mironov',
    'renyi_canonne': 'RDP, Canonne et al.',
  }
  shown = {label: found[rule] for rule, label in named.items() if rule in found}
  exact = found.keys() - named.keys() == {'exact'}
  return shown | {'exact' if exact else 'smallest bound': min(found.values())}


def epsilon_by_delta(
  path: str | Path,
  guarantee_or_event: accounting.Accountable,
  *,
  claim: accounting.ClaimedEvent | None = None,
  status: str = 'proved',
  title: str,
) -> None:
  """Writes a PNG of epsilon against delta, by the rules that matter.

  Deltas are from 1e-12, or from what the ends of noise cost, to 0.1.

  Args:
    path: of the picture.
    guarantee_or_event: what is accounted for.
    claim: of a paper about the same noise, to be shown beside it.
    status: of what is said, where that is an event.
    title: above the picture.
  """
  if isinstance(guarantee_or_event, Guarantee):
    status = guarantee_or_event.status
  # Where little is left of delta, epsilon is without bounds.
  least = max(1e-12, 2 * accounting.uncovered(guarantee_or_event))
  # Loss distributions take half a second for each delta.
  slow = 'pld' in accounting.bounds(guarantee_or_event, 0.1)
  x = np.geomspace(least, 0.1, 12 if slow else 41).tolist()
  epsilon_curves(
    path,
    x,
    x_label='delta',
    points=[bounds_shown(guarantee_or_event, delta) for delta in x],
    claim=None if claim is None else accounting.epsilon(claim, x).tolist(),
    status=status,
    title=title,
  )


def epsilon_curves(
  path: str | Path,
  x: Sequence[float],
  *,
  x_label: Literal['steps', 'delta'],
  points: Sequence[Mapping[str, float]],
  claim: Sequence[float] | None,
  status: str,
  title: str,
) -> None:
  """Writes a PNG of epsilons over `x`, claims apart from what holds.

  Claims are dashed and red, and a line under the title says what they are.

  Args:
    path: of the picture.
    x: steps or deltas.
    x_label: which of them.
    points: `bounds_shown` at each of `x`.
    claim: epsilons that a paper claims for the same noise, or None.
    status: of `points`: 'proved', 'stated' by somebody else, or 'claimed'.
    title: above the picture.
  """
  axes = axes_of(7, 4.6)
  curves = {label: [each[label] for each in points] for label in points[0]}
  if claim is None and status == 'claimed':
    claim, curves = [*curves.values()][-1], {}
  claimed = {} if claim is None else {'claimed by the paper': claim}
  for (label, values), colour in zip(
    curves.items(), ('#8fb3d9', '#4079b5', '#173f6b'), strict=False
  ):
    text = f'{label} (same noise)' if claimed else f'{label} ({status})'
    # Dots where there are too few points for a line.
    mark = '.' if len(x) < 10 else ''
    axes.plot(x, values, color=colour, linewidth=2.4, marker=mark, label=text)
    axes.annotate(
      f'{values[-1]:.3g}',
      (x[-1], values[-1]),
      xytext=(4, 0),
      textcoords='offset points',
      va='center',
      fontsize=8,
      color=colour,
    )
  for label, values in claimed.items():
    axes.plot(
      x,
      values,
      color='#b3261e',
      linestyle=(0, (4, 3)),
      linewidth=1.4,
      label=f'{label} (not a guarantee)',
    )
  axes.set_ylim(bottom=0)
  axes.margins(x=0.06)
  if x_label == 'delta':
    axes.set_xscale('log')
  note = 'all curves are proved upper bounds'
  if status == 'stated':
    note = 'upper bounds for what the author of the system states'
  if claimed and not curves:
    note = 'a claim of the paper, not a guarantee'
  elif claimed:
    note = (
      'dashed: a claim of the paper. solid: proved for the same noise,\n'
      'but only if nothing else leaked, which is not so for this algorithm'
    )
  write(
    path,
    axes,
    x_label={'steps': 'number of steps', 'delta': 'delta'}[x_label],
    y_label='epsilon (smaller is more private)',
    title=f'{title}\n{note}',
    mode=None,
    loc='lower right' if x_label == 'steps' else 'upper right',
  )


# Colours that people with any colour vision tell apart (Okabe and Ito).
_COLOURS = (
  '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000',
)  # fmt: skip
_MARKS = 'osD^vPX'
_AXES = {
  'rmse': 'RMSE on held-out ratings, in points of the scale\n(lower is better)',
  'ndcg': 'NDCG of lists, by held-out items\n(higher is better)',
}


class _Label(NamedTuple):
  """Words for a line that ends at epsilon `x`, or goes all the way."""

  value: float
  text: str
  colour: str
  x: float = 0.0


def comparison(
  path: str | Path | io.BytesIO,
  rows: Sequence[Mapping[str, Any]],
  metric: str,
  *,
  title: str,
) -> None:
  """Writes a PNG of accuracy against epsilon; what is not private are lines.

  Bands are one standard error to each side. What a paper claims is dashed, and
  says that it is no guarantee.

  Args:
    path: of the picture.
    rows: of a `Comparison`.
    metric: the one that is drawn.
    title: above the picture.
  """
  axes = axes_of(9.5, 5.4)
  rows = [row for row in rows if row[metric] is not None]
  level = [row for row in rows if row['status'] == 'none']
  curves: dict[str, list[Mapping[str, Any]]] = {}
  for row in rows:
    if row['status'] != 'none':
      curves.setdefault(row['system'], []).append(row)
  labels = [
    _Label(row[metric], f'{row["system"]} (not private)', '#555555')
    for row in level
  ]
  for row in level:
    axes.axhline(
      row[metric], color='#888888', linewidth=1, linestyle=(0, (5, 3))
    )
  looks = itertools.cycle(zip(_COLOURS, _MARKS, strict=True))
  for (name, points), (colour, mark) in zip(
    curves.items(), looks, strict=False
  ):
    points = sorted(points, key=_stated_epsilon)
    said, last = _curve_label(name, points[0]), points[-1]
    labels.append(_Label(last[metric], said, colour, _stated_epsilon(last)))
    _draw_curve(axes, points, metric, colour, mark)
  ticks = sorted(
    {_stated_epsilon(row) for each in curves.values() for row in each}
  )
  axes.set_xscale('log')
  shown = [f'{tick:.3g}' for tick in ticks]
  axes.set_xticks(ticks or [1.0], shown or ['1'])
  axes.minorticks_off()
  axes.margins(x=0.03)
  _limit(axes, rows, level, metric)
  _label_right(axes, labels)
  kind, _, length = metric.partition('@')
  axes.set_xlabel('epsilon, logarithmic (smaller is more private)')
  axes.set_ylabel(_AXES[kind].replace('NDCG', f'NDCG@{length}'))
  note = 'not private: computed from held-out ratings; bands: standard errors'
  axes.set_title(f'{title}\n{note}', fontsize=9, loc='left')
  axes.spines[['top', 'right']].set_visible(False)
  axes.grid(alpha=0.25)
  save(path, axes)


def _stated_epsilon(row: Mapping[str, Any]) -> float:
  return row[f'{row["status"]}_epsilon']


def _curve_label(name: str, row: Mapping[str, Any]) -> str:
  if row['status'] == 'claimed':
    return f'{name}\n(one {row["unit"]}, claimed: no guarantee)'
  ours = '' if row['status'] == 'proved' else ', stated by its author'
  return f'{name} (one {row["unit"]}{ours})'


def _draw_curve(
  axes: Any,
  points: Sequence[Mapping[str, Any]],
  metric: str,
  colour: str,
  mark: str,
) -> None:
  x = np.array([_stated_epsilon(row) for row in points])
  y = np.array([row[metric] for row in points])
  error = np.array([row[f'{metric}_se'] or 0.0 for row in points])
  claimed = points[0]['status'] == 'claimed'
  axes.plot(
    x,
    y,
    color=colour,
    marker=mark,
    markerfacecolor='white' if claimed else colour,
    linestyle=(0, (4, 3)) if claimed else '-',
    linewidth=1.8,
  )
  axes.fill_between(
    x, y - error, y + error, color=colour, alpha=0.18, linewidth=0
  )
  # A band over a single epsilon has no width.
  axes.errorbar(x, y, error, color=colour, linestyle='none', linewidth=1)


def _limit(
  axes: Any,
  rows: Sequence[Mapping[str, Any]],
  level: Sequence[Mapping[str, Any]],
  metric: str,
) -> None:
  """Leaves out errors that are so large that nothing else could be read."""
  values = [row[metric] for row in rows] or [0.0, 1.0]
  low, high = min(values), max(values)
  if metric == 'rmse' and level:
    lines = [row[metric] for row in level]
    high = min(high, 1.5 * max(lines) - 0.5 * min(lines) + 0.05)
  margin = 0.06 * max(high - low, 0.01)
  axes.set_ylim(low - margin, high + margin)


def _label_right(
  axes: Any, labels: Sequence[_Label], gap: float = 0.065
) -> None:
  """Writes labels beside the axes, as near as can be without overlapping."""
  from scipy.optimize import isotonic_regression  # as matplotlib, when needed

  low, high = axes.get_ylim()
  ordered = sorted(labels)
  below = gap * np.arange(len(ordered))
  wanted = [(min(label.value, high) - low) / (high - low) for label in ordered]
  moved = isotonic_regression(np.array(wanted) - below).x
  room = max(1 - gap * (len(ordered) - 1), 0)
  heights = np.clip(moved, 0, room) + below
  for label, height in zip(ordered, heights, strict=True):
    beyond = f': {label.value:.3g}, above' if label.value > high else ''
    axes.annotate(
      f'{label.text}{beyond}',
      (label.x or 1, min(label.value, high)),
      xycoords=('data' if label.x else 'axes fraction', 'data'),
      xytext=(1.04, height),
      textcoords='axes fraction',
      va='center',
      fontsize=8,
      color=label.colour,
      arrowprops={
        'arrowstyle': '-',
        'relpos': (0, 0.5),
        'color': label.colour,
        'linewidth': 0.6,
        'alpha': 0.6,
      },
    )
