"""Pictures of figures in one style, from the rows of their CSV.

Colours are those of Okabe and Ito, which people with any colour vision tell
apart. Published forms are thin with dots, sound ones thick with squares, what
is not private grey and dashed; bands are one standard error to both sides. The
paper's own numbers are black diamonds.
"""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduce.cases import Axis, Figure
from benchmarks.reproduce.measures import CDF
from benchmarks.reproduce.table import Row, has_own_x
from dpmf_jax.files import write_bytes

_PUBLISHED = ('#D55E00', '#E69F00', '#CC79A7', '#56B4E9', '#8C4A00', '#B8860B')
_SOUND = ('#0072B2', '#009E73', '#004B75', '#00644A')
_GREY, _INK = '#6E6E6E', '#111111'
_STYLE = {
  'published': {'marker': 'o', 'linewidth': 1.4, 'markersize': 3.5},
  'sound': {'marker': 's', 'linewidth': 2.4, 'markersize': 4},
  'not private': {'marker': '', 'linewidth': 1.4, 'linestyle': (0, (5, 3))},
}
_WIDTH, _HEIGHT = 4.9, 3.1  # of a panel, in inches
_GAP = 8.5  # points between two labels


def draw(path: Path, figure: Figure, rows: list[Row]) -> None:
  """Writes the PNG of a figure: data sets side by side, a row for each axis."""
  from matplotlib.figure import Figure as Picture

  names = list(dict.fromkeys(row['data'] for row in rows))
  height = sum(_axis_height(axis, rows) for axis in figure.axes)
  picture = Picture(
    figsize=(max(_WIDTH * len(names), 7), height + 1.1), layout='constrained'
  )
  panels = picture.subplots(
    len(figure.axes),
    len(names),
    squeeze=False,
    height_ratios=[_axis_height(axis, rows) for axis in figure.axes],
  )
  labels = []
  for axis, line in zip(figure.axes, panels, strict=True):
    for name, axes in zip(names, line, strict=True):
      own = [
        row
        for row in rows
        if row['data'] == name and row['curve'].startswith(axis.only)
      ]
      drawn = _bars if axis.kind == 'bars' else _lines
      labels.append((axes, drawn(axes, axis, own)))
      axes.set_title(f'{name}: {own[0]["ratings"]}', fontsize=8)
      axes.set_xlabel(axis.x_label, fontsize=8)
      axes.set_ylabel(axis.y_label, fontsize=8)
  picture.suptitle(_title(figure, rows), fontsize=9, x=0.01, ha='left')
  picture.draw_without_rendering()  # only now is it known how wide things are
  for axes, ends in labels:
    _label(axes, ends)
  made = io.BytesIO()
  picture.savefig(made, format='png', dpi=100)
  write_bytes(path, made.getvalue())


def _axis_height(axis: Axis, rows: list[Row]) -> float:
  if axis.kind == 'lines':
    return _HEIGHT
  return 0.6 + 0.22 * len(
    {r['curve'] for r in rows if r['metric'] == axis.metric}
  )


def _title(figure: Figure, rows: list[Row]) -> str:
  """What it is, how often it was run, and of which data."""
  notes = dict.fromkeys(f'{row["data"]}: {row["note"]}' for row in rows)
  seeds = dict.fromkeys(
    f'{row["seeds"]} ({row["data"]})' for row in rows if row['seeds']
  )
  says = f' The paper: {figure.says}.' if figure.says else ''
  style = 'Orange: as published. Blue: sound.'
  if any(axis.kind == 'lines' for axis in figure.axes):
    style = (
      'Thin: as published, its epsilon a claim. Thick: sound, proved. Dashed: '
      'not private. Bands: one standard error where there is more than one run.'
    )
  if any(row['published'] for row in rows):
    style += " Diamonds: the paper's own numbers."
  lines = (
    f'{figure.name} ({figure.published}).{says}',
    '; '.join(notes) + '.',
    f'Runs: {", ".join(seeds)}. {style}' if seeds else style,
  )
  names = {row['data'] for row in rows}
  width = 90 if len(names) < 2 else 75 * len(names)
  return '\n'.join(textwrap.fill(line, width) for line in lines)


def _curves(rows: list[Row], axis: Axis) -> dict[str, list[Row]]:
  """The rows that an axis shows, by curve; a level where there are no steps."""
  found: dict[str, list[Row]] = {}
  seen = set()
  for row in rows:
    # Of runs on all ratings and on a part of them the first are shown.
    point = row['curve'], row['x']
    if row['metric'] == axis.metric and point not in seen:
      found.setdefault(row['curve'], []).append(row)
      seen.add(point)
  if has_own_x(axis.metric):
    base = axis.metric.split(' by ')[0]
    for row in rows:
      if row['metric'] == base and row['curve'] not in found:
        found.setdefault(row['curve'], []).append(row | {'x': ''})
  return found


def _colours(rows: list[Row]) -> dict[str, str]:
  """A colour for each curve of a data set, the same on all axes."""
  ways = {
    'published': itertools.cycle(_PUBLISHED),
    'sound': itertools.cycle(_SOUND),
    'not private': itertools.repeat(_GREY),
  }
  found: dict[str, str] = {}
  for row in rows:
    if row['curve'] not in found:
      found[row['curve']] = next(ways[row['form']])
  return found


def _number(cell: str) -> float:
  return float(cell) if cell else math.nan


def _lines(axes: Any, axis: Axis, rows: list[Row]) -> list[tuple]:
  """Draws curves; their ends, for labels."""
  colours, ends = _colours(rows), []
  if axis.log_x:
    axes.set_xscale('log')
  for curve, points in _curves(rows, axis).items():
    form, colour = points[0]['form'], colours[curve]
    style = {**_STYLE[form], 'color': colour}
    x = np.array([_number(row['x']) for row in points])
    y = np.array([_number(row['mean']) for row in points])
    error = np.array([_number(row['standard_error']) for row in points])
    if np.isnan(x).all():
      style |= {'marker': '', 'linewidth': style['linewidth'] * 0.8}
      axes.axhline(y[0], **style)
      ends.append((curve, y[0], colour))
      continue
    order = np.argsort(x, kind='stable')
    x, y, error = x[order], y[order], error[order]
    if len(x) > 12:
      style['marker'] = ''
    axes.plot(x, y, **style)
    low, high = y - error, y + error
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    ends.append((curve, y[_label_at(axis, x)], colour))
  for row in rows:
    if row['metric'] == axis.metric and row['published']:
      x = _number(row['x'])
      at, move = (
        (x, None) if not math.isnan(x) else (0.01, axes.get_yaxis_transform())
      )
      more = {} if move is None else {'transform': move}
      axes.plot(
        at, float(row['published']), marker='D', markersize=6, color=_INK,
        markerfacecolor='none', linestyle='', **more,
      )  # fmt: skip
  _tidy(axes)
  return ends


def _label_at(axis: Axis, x: np.ndarray) -> int:
  """Where a curve is named: at its end, or where distributions differ."""
  return int(np.argmin(np.abs(x - 1))) if axis.metric == CDF else -1


def _bars(axes: Any, axis: Axis, rows: list[Row]) -> list[tuple]:
  """Draws a bar for each curve, with its number at the end."""
  colours = {
    'published': _PUBLISHED[0],
    'sound': _SOUND[0],
    'not private': _GREY,
  }
  shown = [row for row in rows if row['metric'] == axis.metric]
  for place, row in enumerate(shown):
    value = _number(row['mean'])
    axes.barh(place, value, color=colours[row['form']], height=0.6, alpha=0.85)
    axes.annotate(
      f' {value:,.4g}' if value < 1000 else f' {value:,.0f}',
      (value, place),
      va='center',
      fontsize=7.5,
    )
    if row['published']:
      axes.plot(
        float(row['published']), place, marker='D', color=_INK,
        markerfacecolor='none', linestyle='',
      )  # fmt: skip
  axes.set_yticks(range(len(shown)), [row['curve'] for row in shown])
  axes.invert_yaxis()
  axes.margins(x=0.2)
  _tidy(axes)
  return []


def _tidy(axes: Any) -> None:
  axes.tick_params(labelsize=7.5)
  axes.spines[['top', 'right']].set_visible(False)
  axes.grid(alpha=0.25)


def _label(axes: Any, ends: list[tuple]) -> None:
  """Writes the names of curves at their ends, none over another."""
  if not ends:
    return
  from matplotlib.transforms import offset_copy

  _limit(axes, ends)
  ends = [end for end in ends if math.isfinite(end[1])]
  to_points = 72 / axes.figure.dpi
  low, high = axes.get_ylim()
  place = lambda y: (
    axes.transData.transform((axes.get_xlim()[0], min(max(y, low), high)))[1]
    * to_points
  )
  ends.sort(key=lambda end: place(end[1]))
  at = [place(end[1]) for end in ends]
  spread = list(at)
  for k in range(1, len(spread)):
    spread[k] = max(spread[k], spread[k - 1] + _GAP)
  # Those that were pushed up are let down together.
  middle = (sum(spread) - sum(at)) / max(len(at), 1)
  bottom = axes.transAxes.transform((0, 0))[1] * to_points
  top = axes.transAxes.transform((0, 1))[1] * to_points
  shift = (
    max(min(middle, spread[0] - bottom), spread[-1] - top) if spread else 0
  )
  for (curve, y, colour), want, own in zip(ends, spread, at, strict=True):
    text = offset_copy(
      axes.get_yaxis_transform(),
      fig=axes.figure,
      x=4,
      y=want - shift - own,
      units='points',
    )
    axes.text(
      1.0, min(max(y, low), high), curve, transform=text, color=colour,
      fontsize=7, va='center', clip_on=False,
    )  # fmt: skip


def _limit(axes: Any, ends: list[tuple]) -> None:
  """Leaves out the first steps, which are far off all that matters."""
  finite = [end[1] for end in ends if math.isfinite(end[1])]
  low, high = axes.get_ylim()
  if not finite or not has_steps(axes):
    return
  top = max(finite)
  axes.set_ylim(low, min(high, top + max(0.5 * (top - low), 0.02)))


def has_steps(axes: Any) -> bool:
  """Whether it is a learning curve."""
  return any(word in axes.get_xlabel() for word in ('steps', 'rounds'))
