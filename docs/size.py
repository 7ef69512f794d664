"""Prints how large the code is, as a table: lines and modules of each room.

  python -m docs.size

Blank lines, comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from pathlib import Path

from docs.build import ROOMS, ROOT

# What has no meaning of its own.
_LAYOUT = {
  tokenize.COMMENT,
  tokenize.NL,
  tokenize.NEWLINE,
  tokenize.INDENT,
  tokenize.DEDENT,
  tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
  """How many lines have code on them."""
  lines = set()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type not in _LAYOUT:
      lines.update(range(token.start[0], token.end[0] + 1))
  for node in ast.walk(ast.parse(source)):
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
      continue
    if ast.get_docstring(node, clean=False):
      text = node.body[0]
      lines.difference_update(range(text.lineno, (text.end_lineno or 0) + 1))
  return len(lines)


def row(name: str, paths: list[Path]) -> str:
  """Of a table: lines, modules, and lines of the median and largest module."""
  sizes = {path: code_lines(path.read_text()) for path in paths}
  sizes = {path: size for path, size in sizes.items() if size}
  largest = max(sizes, key=lambda path: sizes[path])
  middle = round(statistics.median(sizes.values()))
  cells = (
    name, f'{sum(sizes.values()):,}', len(sizes), middle,
    f'{sizes[largest]} (`{largest.name}`)',
  )  # fmt: skip
  return f'| {" | ".join(map(str, cells))} |'


def main() -> None:
  print('| | lines of code | modules | median module | largest |')
  print('|---|---|---|---|---|')
  library = sorted(ROOT.glob('dpmf_jax/**/*.py'))
  for room in ROOMS:
    own = ROOT / 'dpmf_jax' / room
    alone = own.with_suffix('.py')
    print(
      row(f'`{room}`', [p for p in library if p == alone or own in p.parents])
    )
  print(row('all of `dpmf_jax`', library))
  for folder in ('tests', 'benchmarks', 'docs'):
    print(row(f'`{folder}/`', sorted(ROOT.glob(f'{folder}/**/*.py'))))


if __name__ == '__main__':
  main()
