"""Recommends items from a model that dpmf train wrote.

To users the model was trained with:

  dpmf recommend --model=runs/first --users=1,2,3 --k=5

to new users, by a file of their own ratings (lines of user,item,rating, with
the item ids and the scale that the model was trained with) or, for models that
make rankings, clicks (user,item):

  dpmf recommend --model=runs/first --ratings=new_users.csv --k=5

and items that are like others:

  dpmf recommend --model=runs/first --similar_to=50,181 --k=5

prints a table; with --output=FILE.csv (or .parquet) it is written there, with
the columns user, item, score, rank (or item, similar, score, rank) and, where
titles are known, title. Users and items have the ids of the ratings file.
Items that a user rated are left out, so a list is for the eyes of its user.
With --why=3 each line has the items of the user's own that add most to its
score, which are nobody else's business either.

Lists are ordered by predicted ratings, shrunk where few people rated an item
(if the model says that), or by the scores of a ranking, which have no scale.

New users need only what is published: model.safetensors, ids.json and
certificate.json. Their vectors are fitted to their own ratings and to released
item factors; systems that do not release these cannot take them. With

  dpmf recommend --model=runs/first --page=page.html

they need no program but a browser: the page, one file that uses no network, has
a search for titles, takes what its reader likes (or their stars) and makes
their list where it is read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from absl import flags

from dpmf_jax.commands import declaring, reading


class _Declared:
  """Whose lists, from which model.

  Attributes:
    model: The --output folder of dpmf train.
    users: Original ids, separated by commas, or 'all'.
    ratings: A file of ratings by new users, who are folded in.
    similar_to: Original ids of items, or 'all'.
    k: Items per user.
    filter_seen: Leave out the items that a user rated.
    why: How many of the user's own items to name as reasons.
    output: A .csv or .parquet file to write; a table is printed else.
    page: An .html file to write, in which readers make their own lists.
  """

  model: str
  users: Sequence[str] | None = None
  ratings: str | None = None
  similar_to: Sequence[str] | None = None
  k: Annotated[int, {'lower_bound': 1}] = 10
  filter_seen: bool = True
  why: Annotated[int, {'lower_bound': 0}] = 0
  output: str | None = None
  page: str | None = None


_FLAGS = declaring.define(_Declared)
flags.adopt_module_key_flags(reading)

GROUPS = {
  'lists': ('model', 'users', 'similar_to', 'k', 'filter_seen', 'why'),
  'new users': ('ratings', *reading.FLAGS),
  'output': ('output', 'page'),
}


def _columns(rows: list[Any], titles: bool) -> dict[str, Any]:
  """Recommendations or similar items as columns."""
  import numpy as np

  left_out = {
    *(() if titles else ('title',)),
    *(() if _FLAGS.why else ('why',)),
  }
  columns: dict[str, Any] = {
    name: [getattr(row, name) for row in rows]
    for name in rows[0]._fields
    if name not in left_out
  }
  if 'why' in columns:
    columns['why'] = [_because(reasons) for reasons in columns['why']]
  # As they were computed: more digits would be made up.
  return columns | {'score': np.array(columns['score'], np.float32)}


def _found(model) -> list[Any]:
  """What the flags ask for."""
  from dpmf_jax.ratings import formats
  from dpmf_jax.ratings.ids import OutsideScaleError
  from dpmf_jax.serving import folding, recommendations

  if _FLAGS.similar_to is not None:
    return recommendations.similar_items(
      model, _wanted(_FLAGS.similar_to), _FLAGS.k
    )
  users = None
  if _FLAGS.ratings is not None:
    try:
      ratings = formats.read(
        _FLAGS.ratings, **folding.read_with(model), **reading.options()
      )
    except OutsideScaleError as error:
      raise ValueError(f"{error.message}: that scale is the model's") from None
    model = folding.fold_in(model, ratings)
  else:
    users = _wanted(_FLAGS.users)
    if model.user_factors is None:
      raise ValueError(
        '--users: the user factors are not known here, as this system does not '
        'release them; fold users in by their own ratings, --ratings=FILE'
      )
  if _FLAGS.filter_seen and model.seen is None:
    raise ValueError(
      'which items were seen is not known here (private/seen.safetensors is '
      'missing); pass --nofilter_seen to recommend from all items'
    )
  return recommendations.recommend(
    model, users, _FLAGS.k, filter_seen=_FLAGS.filter_seen, why=_FLAGS.why
  )


def _because(reasons) -> str:
  names = (reason.title or str(reason.item) for reason in reasons)
  return '; '.join(names)


def _wanted(ids: Sequence[str] | None) -> Sequence[str] | None:
  """None stands for all of them."""
  return None if ids == ['all'] else ids


def _write_page(model, path: Path) -> None:
  from dpmf_jax import certificates
  from dpmf_jax.serving import page

  if _FLAGS.output:
    raise ValueError('--output is for lists; --page=FILE.html is itself a file')
  if path.suffix not in ('.html', '.htm'):
    raise ValueError(f'--page={path} must end in .html, for browsers')
  page.write_page(model, certificates.read(_FLAGS.model), path, k=_FLAGS.k)
  print(
    f'{len(model.item_ids)} items, {path.stat().st_size / 1e6:.2f} MB, written '
    f'to {path}: open it in a browser'
  )


def main(argv) -> None:
  del argv
  from dpmf_jax.ratings import writing
  from dpmf_jax.serving import models, recommendations

  asked = _FLAGS.users, _FLAGS.ratings, _FLAGS.similar_to, _FLAGS.page
  if sum(value is not None for value in asked) != 1:
    raise ValueError(
      'pass one of --users=ID,ID (or all), --ratings=FILE of new users, '
      '--similar_to=ITEM,ITEM and --page=FILE.html'
    )
  if _FLAGS.ratings is None:
    reading.check_unused('--users, --similar_to or --page')
  path = Path(_FLAGS.output) if _FLAGS.output else None
  if path is not None:
    writing.check_suffix(path)
  model = models.load_model(_FLAGS.model)
  if _FLAGS.page is not None:
    _write_page(model, Path(_FLAGS.page))
    return
  found = _found(model)
  if not model.covered and (_FLAGS.users or not model.items_released):
    own = ': a list is for its user alone' if model.items_released else ''
    print(
      f'note: uses factors from private/, which no guarantee covers{own}',
      file=sys.stderr,
    )
  if not _FLAGS.similar_to and recommendations.one_order(model.item_factors):
    print(f'note: {recommendations.ONE_ORDER}', file=sys.stderr)
  if not found:
    why = 'all items were seen'
    if _FLAGS.similar_to:
      why = 'the model has learned no factors of these items'
    raise ValueError(f'there is nothing to recommend: {why}')
  if path is not None:
    writing.write_columns(_columns(found, bool(model.titles)), path)
    what = 'similar items' if _FLAGS.similar_to else 'recommendations'
    print(f'{len(found)} {what} written to {path}')
    return
  digits = 2
  for row in found:
    _, item, score, rank, title, *reasons = row
    if rank == 1:
      # Scores of a ranking have no scale, and may all be small.
      digits = 2 if abs(score) >= 0.1 else 5
      print(f'{row._fields[0]} {_name(model, row)}')
    name = item if title is None else f'{title} [{item}]'
    print(f'  {rank:>3}. {score:.{digits}f}  {name}')
    if reasons and (because := _because(*reasons)):
      print(f'             because of {because}')


def _name(model, row) -> str:
  """Of the user, or of the item that others are similar to."""
  title = None if row._fields[0] == 'user' else model.titles.get(str(row[0]))
  return f'{row[0]}' if title is None else f'{title} [{row[0]}]'
