"""Writes what docs/ says of the code: the import graph and the systems' tables.

  python -m docs.build

The graph goes between two marks in docs/design.md, the tables are all of
docs/systems.md. `tests/docs_test.py` fails where either is not up to date.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from dpmf_jax.plans import SPECS
from dpmf_jax.plans.settings import settings_of

ROOT = Path(__file__).resolve().parents[1]
# A room imports from those before it, and from itself.
ROOMS = (
  'types',
  'files',
  'ratings',
  'accounting',
  'plans',
  'certificates',
  'keys',
  'rows',
  'homes',
  'mechanisms',
  'kernels',
  'systems',
  'blocks',
  'training',
  'serving',
  'evaluation',
  'runs',
  'auditing',
  'federated',
  'commands',
)
WITHOUT_JAX = ROOMS[: ROOMS.index('keys')]
_MARKS = '<!-- graph: python -m docs.build -->', '<!-- end of graph -->'


def imports(path: Path) -> Iterator[str]:
  """Names of modules and of what is taken from them, at run time."""
  tree = ast.parse(path.read_text())
  unseen = {
    id(inner)
    for node in ast.walk(tree)
    if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING'
    for inner in ast.walk(node)
  }
  for node in ast.walk(tree):
    if id(node) in unseen:
      continue
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def room_of(name: str) -> str | None:
  """The room that a dotted name is in; None if it is not ours."""
  parts = name.split('.')
  if parts[0] != 'dpmf_jax' or len(parts) == 1:
    return None
  return parts[1] if parts[1] in ROOMS else None


def edges() -> dict[tuple[str, str], list[str]]:
  """(room, room that it imports) -> the files that do."""
  found: dict[tuple[str, str], list[str]] = {}
  for path in sorted(ROOT.glob('dpmf_jax/**/*.py')):
    own = room_of('.'.join(path.relative_to(ROOT).with_suffix('').parts))
    for name in imports(path):
      other = room_of(name)
      if own and other and other != own:
        found.setdefault((own, other), []).append(str(path.relative_to(ROOT)))
  return found


def graph() -> str:
  """The rooms as a Mermaid drawing, an arrow from each to what it imports.

  Arrows that follow from others are left out, and so are those to `types`.
  """
  direct: dict[str, set[str]] = {room: set() for room in ROOMS}
  for room, other in edges():
    direct[room].add(other)
  reach: dict[str, set[str]] = {}
  for room in ROOMS:
    reach[room] = direct[room].union(*(reach[o] for o in direct[room]))
  lines = ['```mermaid', 'graph BT']
  for room in ROOMS:
    short = '([%s])' if room in WITHOUT_JAX else '[%s]'
    lines.append(f'  {room}{short % room}')
  for room in ROOMS:
    for other in sorted(direct[room] - {'types'}, key=ROOMS.index):
      rest = direct[room] - {other}
      if not any(other in reach[via] for via in rest):
        lines.append(f'  {room} --> {other}')
  return '\n'.join([*lines, '```'])


def systems() -> str:
  """docs/systems.md: every system with its settings."""
  lines = [
    '# Systems and their settings',
    '',
    'Written by `python -m docs.build` from `dpmf_jax/plans/`. Flags of',
    '`dpmf train` and `dpmf account` have the names of the settings.',
  ]
  for name, spec in SPECS.items():
    variants = ', '.join(f'`{variant}`' for variant in spec.variants)
    lines += ['', f'## {name}', '', f'{spec.help} Variants: {variants}.', '']
    lines += ['| setting | default | must be | |', '|---|---|---|---|']
    for each in settings_of(spec.config):
      needed = each.default is dataclasses.MISSING
      default = 'needed' if needed else f'`{each.default}`'
      cells = (f'`{each.name}`', default, each.bound, each.help)
      shown = (cell.replace('|', '\\|') for cell in cells)
      lines.append(f'| {" | ".join(shown)} |')
  return '\n'.join(lines) + '\n'


def design() -> str:
  """docs/design.md with the graph as it is now."""
  text = (ROOT / 'docs' / 'design.md').read_text()
  before, rest = text.split(_MARKS[0])
  after = rest.split(_MARKS[1])[1]
  return f'{before}{_MARKS[0]}\n{graph()}\n{_MARKS[1]}{after}'


def main() -> None:
  (ROOT / 'docs' / 'systems.md').write_text(systems())
  (ROOT / 'docs' / 'design.md').write_text(design())


if __name__ == '__main__':
  main()
