"""Which items of two data sets are the same, by id or by title and year."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

By = Literal['id', 'title']

_YEAR = re.compile(r'\s*\((\d{4})\)\s*$')
_ASIDE = re.compile(r'\([^()]*\)')  # another title, in its own language
_ARTICLE = re.compile(
  r"^(.*), (the|a|an|la|le|les|l'|il|lo|el|los|las|das|der|die|den|det|ein)$"
)


def normalised(title: str) -> str:
  """`title` as it is compared: plain letters and digits, and the year.

  >>> normalised('Postino, Il (Postman, The) (1994)')
  'ilpostino 1994'
  >>> normalised('Il Postino (1994)')
  'ilpostino 1994'
  """
  plain = unicodedata.normalize('NFKD', title).lower()
  plain = ''.join(c for c in plain if not unicodedata.combining(c))
  found = _YEAR.search(plain)
  name = plain[: found.start()] if found else plain
  name = _ASIDE.sub(' ', name).strip()
  if article := _ARTICLE.match(name):
    name = f'{article[2]} {article[1]}'
  name = re.sub(r'[^\w]|_', '', name.replace('&', 'and'))
  return f'{name} {found[1]}' if found else name


def same_items(
  ids: Sequence[Any],
  titles: Mapping[str, str],
  other_ids: Sequence[str],
  other_titles: Sequence[str],
) -> tuple[np.ndarray, By]:
  """For each of `ids` its place among the others, or -1; and what by.

  Args:
    ids: of items.
    titles: id, as text -> title; may be empty.
    other_ids: of the other data set, as text.
    other_titles: in the same order; '' where there is none.

  By title where both sides have some, since ids of two data sets are alike by
  chance more often than not, and by id otherwise. Of several of the others
  with one title the first is meant.
  """
  names = [str(each) for each in np.asarray(ids).tolist()]
  by_title = bool(titles) and any(other_titles)
  keys, others = names, list(other_ids)
  if by_title:
    keys = [normalised(titles.get(name, '')) for name in names]
    others = [normalised(title) for title in other_titles]
  place: dict[str, int] = {}
  for number, key in enumerate(others):
    if key:
      place.setdefault(key, number)
  found = np.array([place.get(key, -1) for key in keys], np.int64)
  return found, 'title' if by_title else 'id'
