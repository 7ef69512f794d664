"""What a comparison of systems found, as a table and as a picture.

Privacy: nothing here is private; see `NOTE`.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import functools
import html
import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax import accounting, files
from dpmf_jax.certificates.rendering import aligned
from dpmf_jax.evaluation import plots
from dpmf_jax.types import Guarantee

NOTE = (
  'NOT PRIVATE: an experiment. Accuracy is computed from held-out ratings '
  'without noise, and seeds are fixed, so that no epsilon below covers any of '
  'this. Where ratings are private, publish none of it and choose nothing by '
  'it.'
)
CLAIMED = (
  'claimed epsilon: by a paper, for its own algorithm; it is not a guarantee, '
  'and may be refuted (see docs/privacy)'
)
STATED = 'stated epsilon: by the author of a system that is not of this library'
# Whose word an epsilon is.
_WORDS = ('proved', 'stated', 'claimed')
_LABELS = {'rmse': 'RMSE', 'map': 'MAP', 'mrr': 'MRR', 'auc': 'AUC'}
FILES = ('table.csv', 'table.md', 'table.html', 'plot.png')
_STYLE = (
  'body { font: 16px sans-serif; margin: 2em auto; max-width: 60em; '
  'padding: 0 1em } img { max-width: 100% } td, th { padding: 0.2em 0.8em; '
  'text-align: left; border-bottom: 1px solid #ccc }'
)
_UNITS = {'rating': 'one rating', 'user': 'one user'}


def label(metric: str) -> str:
  """How people write a metric: NDCG@10 for 'ndcg@10'."""
  name, at, k = metric.partition('@')
  known = _LABELS | {'ndcg': 'NDCG', 'recall': 'Recall'}
  return known.get(name, name) + at + k


def promised(guarantee: Guarantee, delta: float | None) -> dict[str, Any]:
  """What is said of the privacy of a row, each word in a place of its own.

  A paper's claim is never in the place of what is proved.
  """
  found: dict[str, Any] = {'status': guarantee.status}
  found |= dict.fromkeys(f'{word}_epsilon' for word in _WORDS)
  if guarantee.event is None or delta is None:
    return found | {'delta': None, 'unit': None, 'relation': None}
  delta = delta or accounting.uncovered(guarantee)
  epsilon = accounting.epsilon(guarantee, delta)
  return found | {
    f'{guarantee.status}_epsilon': epsilon,
    'delta': delta,
    'unit': guarantee.unit,
    'relation': guarantee.relation,
  }


def summary(found: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
  """Mean and standard error of every metric over the runs of a row.

  A run that diverged has no figures, and then the row has none.
  """
  diverged = sum(all(v is None for v in each.values()) for each in found)
  shown: dict[str, Any] = {'runs': len(found), 'diverged': diverged}
  for name in found[0]:
    values = [value for each in found if (value := each[name]) is not None]
    whole, several = len(values) == len(found), len(values) > 1
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if several else None
    shown[name] = float(np.mean(values)) if whole else None
    shown[f'{name}_se'] = float(error) if whole and error is not None else None
  return shown


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
  """Systems by epsilon, each with its mean accuracy; print it for a table.

  Privacy: none of it is private; see `NOTE`.

  Attributes:
    rows: of each system and epsilon what is promised, and the mean and the
      standard error of each metric over all runs, by name; a DataFrame of
      pandas can be made of them.
    metrics: the names of what was measured; the first is drawn.
    name: of the data.
    protocol: what was held out, and how many runs there were, in words.
  """

  rows: list[dict[str, Any]]
  metrics: tuple[str, ...]
  name: str
  protocol: str

  @property
  def title(self) -> str:
    return f'{self.name}, {self.protocol}'

  def table(self) -> tuple[list[str], list[list[str]]]:
    """The head and the lines of a table, as text."""
    words = [w for w in _WORDS if any(r[f'{w}_epsilon'] for r in self.rows)]
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
      'system': lambda row: row['system'],
      **{f'{w} epsilon': _epsilon_of(w) for w in words},
      'protects': _protected,
      **{label(name): _figure_of(name) for name in self.metrics},
    }
    lines = [[show(row) for show in columns.values()] for row in self.rows]
    return list(columns), lines

  def notes(self) -> list[str]:
    """What has to be read with the table, after `NOTE`."""
    found = {row['status'] for row in self.rows}
    shown = {'claimed': CLAIMED, 'stated': STATED}
    several = any(row['runs'] > 1 for row in self.rows)
    return [
      self.title + '; +- is one standard error over runs' * several,
      *(words for status, words in shown.items() if status in found),
    ]

  def text(self) -> str:
    """The table for a terminal."""
    head, lines = self.table()
    shown = aligned([head, *lines])
    notes = (textwrap.fill(note, 80) for note in self.notes())
    return '\n'.join((textwrap.fill(NOTE, 80), '', *shown, '', *notes))

  __repr__ = text

  def markdown(self) -> str:
    """The table for a page."""
    head, lines = self.table()
    rows = (head, ['---'] * len(head), *lines)
    shown = (
      f'| {" | ".join(cell.replace("|", "&#124;") for cell in line)} |'
      for line in rows
    )
    notes = (f'- {note}' for note in self.notes())
    return '\n'.join((f'**{NOTE}**', '', *shown, '', *notes, ''))

  def csv(self) -> str:
    """All rows, in full, for other programs."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(self.rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(self.rows)
    return out.getvalue()

  @functools.cached_property
  def picture(self) -> bytes:
    """A PNG of the first metric against epsilon."""
    picture = io.BytesIO()
    plots.comparison(picture, self.rows, self.metrics[0], title=self.title)
    return picture.getvalue()

  def plot(self, path: str | Path) -> None:
    """Writes `picture`, for its owner alone."""
    files.write_bytes(path, self.picture, mode=0o600)

  def _repr_html_(self) -> str:
    """The table and the picture, for a notebook."""
    head, lines = self.table()
    row = lambda cells, tag: (
      f'<tr>{"".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells)}</tr>'
    )
    body = ''.join(row(line, 'td') for line in lines)
    notes = ''.join(f'<li>{html.escape(note)}</li>' for note in self.notes())
    encoded = base64.b64encode(self.picture).decode()
    return (
      f'<p><strong>{html.escape(NOTE)}</strong></p>'
      f'<table>{row(head, "th")}{body}</table><ul>{notes}</ul>'
      f'<img alt="{label(self.metrics[0])} against epsilon" width="800" '
      f'src="data:image/png;base64,{encoded}">'
    )

  def html(self) -> str:
    """A page that needs no other file."""
    return (
      '<!doctype html><html lang="en"><meta charset="utf-8">'
      f'<title>{html.escape(self.title)}</title><style>{_STYLE}</style>'
      f'{self._repr_html_()}</html>\n'
    )

  def write(self, folder: Path) -> None:
    """Writes `FILES` into a folder, for their owner alone."""
    texts = self.csv(), self.markdown(), self.html()
    for name, text in zip(FILES, texts, strict=False):
      files.write_bytes(folder / name, text.encode(), mode=0o600)
    self.plot(folder / FILES[-1])


def _protected(row: Mapping[str, Any]) -> str:
  unit = _UNITS.get(row['unit'], 'nothing')
  return f'{unit}, claimed' if row['status'] == 'claimed' else unit


def _epsilon_of(word: str) -> Callable[[Mapping[str, Any]], str]:
  return lambda row: _number(row[f'{word}_epsilon'])


def _number(epsilon: float | None) -> str:
  return '-' if epsilon is None else f'{epsilon:.4g}'


def _figure_of(name: str) -> Callable[[Mapping[str, Any]], str]:
  def figure(row: Mapping[str, Any]) -> str:
    mean, error = row[name], row[f'{name}_se']
    if row['diverged']:
      return f'diverged in {row["diverged"]} of {row["runs"]}'
    if mean is None:
      return '-'
    return f'{mean:.4f}' + ('' if error is None else f' +- {error:.4f}')

  return figure
