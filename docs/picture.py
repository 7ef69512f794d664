"""Draws docs/results/lists.png, the picture of the README.

  python -m docs.picture

Its figures are in docs/results/lists.csv: means over seeds from the section
"Private lists" of docs/results.md, which has the command that made them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent / 'results'
_TITLES = {'ml-100k': 'MovieLens-100K', 'ml-1m': 'MovieLens-1M'}
# Colours that people with any colour vision tell apart.
_PRIVATE = {
  'one rating': ('#0072B2', 'o', 'one rating protected', (-8, 6)),
  'one user': ('#D55E00', 's', 'one user protected', (-2, -18)),
}
_LINES = {
  'no privacy': ('EASE, no privacy', 4),
  'popularity': ('popularity, no privacy', -12),
}


def rows() -> list[dict[str, str]]:
  """The figures: data set, what is protected, epsilon, NDCG@10."""
  with (FOLDER / 'lists.csv').open() as file:
    return list(csv.DictReader(file))


def _draw(axes: Any, name: str) -> None:
  points: dict[str, list[tuple[float, float]]] = {}
  for row in rows():
    if row['dataset'] == name:
      point = float(row['epsilon'] or 0), float(row['ndcg_at_10'])
      points.setdefault(row['what'], []).append(point)
  for what, (label, place) in _LINES.items():
    ((_, value),) = points[what]
    axes.axhline(value, color='#555555', linewidth=1.2, linestyle=(0, (5, 3)))
    axes.annotate(
      f'{label}: {value:.2f}',
      (0.09, value),
      xytext=(0, place),
      textcoords='offset points',
      fontsize=8.5,
      color='#333333',
    )
  for what, (colour, mark, label, shift) in _PRIVATE.items():
    x, y = zip(*points[what], strict=True)
    axes.plot(x, y, color=colour, marker=mark, linewidth=2)
    axes.annotate(
      label,
      (x[1], y[1]),
      xytext=shift,
      textcoords='offset points',
      ha='right' if what == 'one rating' else 'left',
      fontsize=9,
      color=colour,
    )
  axes.set_xscale('log')
  axes.set_xticks([0.1, 1, 5, 20], ['0.1', '1', '5', '20'])
  axes.minorticks_off()
  axes.set_xlabel('epsilon (smaller is more private)')
  axes.set_title(_TITLES[name], fontsize=10)
  axes.set_xlim(0.08, 30)
  axes.set_ylim(0, 0.46)
  axes.spines[['top', 'right']].set_visible(False)
  axes.grid(axis='y', alpha=0.25)


def main() -> None:
  figure = Figure(figsize=(8.4, 3.4), layout='constrained')
  both = figure.subplots(1, 2, sharey=True)
  for axes, name in zip(both, _TITLES, strict=True):
    _draw(axes, name)
  both[0].set_ylabel('NDCG@10 of held-out lists')
  figure.savefig(FOLDER / 'lists.png', dpi=130)


if __name__ == '__main__':
  main()
