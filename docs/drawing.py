"""The import graph as a picture that needs no script and no network."""

from __future__ import annotations

import re

_NODE = re.compile(r'^  (\w+)(\(?)\[', re.M)
_EDGE = re.compile(r'^  (\w+) --> (\w+)$', re.M)
_FENCE = re.compile(r'^```mermaid\n(.*?)^```$', re.S | re.M)
_WIDTH, _ROW, _BOX = 760, 62, (96, 28)
_HEAD = (
  '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" '
  'markerWidth="7" markerHeight="7" orient="auto">'
  '<path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
)


def drawn(markdown: str) -> str:
  """A page in which graphs of Mermaid are drawings."""
  return _FENCE.sub(lambda found: svg(found[1]), markdown)


def svg(graph: str) -> str:
  """A drawing of a graph: every node above all that its arrows go to."""
  edges = _EDGE.findall(graph)
  level: dict[str, int] = {}
  round_boxes = set()
  for name, bracket in _NODE.findall(graph):  # what is imported comes first
    below = [level[other] for source, other in edges if source == name]
    level[name] = 1 + max(below, default=-1)
    if bracket:
      round_boxes.add(name)
  height = (max(level.values()) + 1) * _ROW
  place: dict[str, tuple[float, float]] = {}
  for number in set(level.values()):
    row = [name for name in level if level[name] == number]
    for index, name in enumerate(row):
      x = _WIDTH * (index + 0.5) / len(row)
      place[name] = (x, height - (number + 0.5) * _ROW)
  lines = [_line(place[a], place[b]) for a, b in edges]
  boxes = [_box(name, *place[name], name in round_boxes) for name in place]
  return (
    f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" '
    'aria-label="which room imports which" class="graph">'
    f'{_HEAD}{"".join(lines)}{"".join(boxes)}</svg>'
  )


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
  (x1, y1), (x2, y2) = start, end
  half = _BOX[1] / 2
  bend = (y1 + y2) / 2
  return (
    f'<path d="M{x1:.0f} {y1 + half:.0f} C{x1:.0f} {bend:.0f} {x2:.0f} '
    f'{bend:.0f} {x2:.0f} {y2 - half:.0f}" marker-end="url(#head)"/>'
  )


def _box(name: str, x: float, y: float, is_round: bool) -> str:
  width, height = _BOX
  return (
    f'<rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" width="{width}" '
    f'height="{height}" rx="{height // 2 if is_round else 2}"/>'
    f'<text x="{x:.0f}" y="{y + 4:.0f}">{name}</text>'
  )
