"""Reading the titles of items from the files that come with data sets."""

from __future__ import annotations

import csv
import html
import os
import pathlib
import re

from dpmf_jax.ratings import tokens
from dpmf_jax.ratings.ids import DataError

_ITEM = {'itemid', 'movieid', 'animeids', 'animeid', 'id'}
_TITLE = {'title', 'movietitle', 'name'}
_YEAR = {'releaseyear', 'year'}


def read_titles(path: str | os.PathLike[str]) -> dict[str, str]:
  """Returns item id (as str) -> title.

  Reads MovieLens u.item ('|'), movies.dat ('::') and movies.csv, Netflix
  movie_titles.csv (id,year,title with bare commas), RecBole .item and
  anime_info.dat (tab), told apart by their first line. A year that stands in
  a column of its own is added: 'Toy Story (1995)'.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise DataError(f'{path}: no such file of titles; check the path')
  raw = tokens.decode(path.read_bytes(), str(path))
  lines = re.split('\r?\n', raw.decode('utf-8'))
  while lines and not lines[-1].strip():
    lines.pop()
  if not lines:
    raise DataError(f'{path}: the file of titles is empty')
  first = lines[0]
  if re.match(r'\d+,(\d{4}|NULL),', first):
    rows = _cut(lines, ',', path, maxsplit=2)
    return {key: _with_year(title, year) for key, year, title in rows}
  if re.match(r'[^\t,|]+::', first):
    return {row[0]: row[1].strip() for row in _cut(lines, '::', path)}
  if re.match(r'[^\t,|]+\|', first):
    return {row[0]: row[1].strip() for row in _cut(lines, '|', path)}
  return _read_table(lines, path)


def _cut(
  lines: list[str], delimiter: str, path: pathlib.Path, maxsplit: int = -1
) -> list[list[str]]:
  rows = [line.split(delimiter, maxsplit) for line in lines]
  width = max(2, maxsplit + 1)
  for number, row in enumerate(rows, start=1):
    if len(row) < width:
      raise DataError(
        f'{path}, line {number}: has {len(row)} column(s), expected at least '
        f'{width} separated by {delimiter!r}'
      )
  return rows


def _read_table(lines: list[str], path: pathlib.Path) -> dict[str, str]:
  """Returns the titles of a table with a header, tab or comma."""
  if '\t' in lines[0]:
    rows = [line.split('\t') for line in lines]
  else:
    rows = _records(lines, path)
  plain = [re.sub(r'[^a-z]', '', n.split(':')[0].lower()) for n in rows[0]]
  find = lambda names: next((k for k, n in enumerate(plain) if n in names), -1)
  item, title, year = find(_ITEM), find(_TITLE), find(_YEAR)
  if item < 0 or title < 0:
    raise DataError(
      f'{path}, line 1: unknown format of titles, no item id and title among '
      f'{", ".join(rows[0])[:80]!r}'
    )
  titles = {}
  for number, row in enumerate(rows[1:], start=2):
    if len(row) != len(plain):
      raise DataError(
        f'{path}, line {number}: has {len(row)} column(s), expected '
        f'{len(plain)}'
      )
    text = html.unescape(row[title].strip())
    titles[row[item]] = _with_year(text, row[year]) if year >= 0 else text
  return titles


def _records(lines: list[str], path: pathlib.Path) -> list[list[str]]:
  reader = csv.reader(lines)
  try:
    return list(reader)
  except csv.Error as error:  # a line break of its own, or a field too long
    raise DataError(f'{path}, line {reader.line_num}: {error}') from None


def _with_year(title: str, year: str) -> str:
  title, year = title.strip(), year.strip()
  return f'{title} ({year})' if re.fullmatch(r'\d{4}', year) else title
