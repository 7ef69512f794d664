"""Lists as GitHub reads them, turned into what Python-Markdown reads."""

from __future__ import annotations

import re

_ITEM = re.compile(r'(- |\d+\. )(?=\S)')


def listed(lines: list[str]) -> list[str]:
  """Lines in which what belongs to an item of a list is four spaces in.

  An item with several blocks, and a list right after a paragraph, get blank
  lines around them, which Markdown elsewhere does without.
  """
  out: list[str] = []
  fence, number = False, 0
  while number < len(lines):
    line = lines[number]
    number += 1
    fence ^= line.lstrip().startswith('```')
    marker = None if fence else _ITEM.match(line)
    if not marker:
      out.append(line)
      continue
    inside = []
    while number < len(lines) and _is_inside(lines[number]):
      inside.append(lines[number])
      number += 1
    while inside and not inside[-1].strip():
      inside.pop()
      number -= 1
    margin = min([4, *(_margin(each) for each in inside if each.strip())])
    inside = listed([line[marker.end() :], *(each[margin:] for each in inside)])
    paragraph = bool(out) and bool(out[-1].strip()) and not _in_list(out)
    loose = '' in [each.strip() for each in inside]
    if (paragraph or loose) and out and out[-1].strip():
      out.append('')
    out.append(marker[0] + inside[0])
    out += ['    ' + each if each.strip() else '' for each in inside[1:]]
    if loose and number < len(lines) and lines[number].strip():
      out.append('')
  return out


def _is_inside(line: str) -> bool:
  return not line.strip() or line.startswith('  ')


def _margin(line: str) -> int:
  return len(line) - len(line.lstrip())


def _in_list(out: list[str]) -> bool:
  """Whether the last line is of an item."""
  return bool(_ITEM.match(out[-1])) or out[-1].startswith('    ')
