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
from pathlib import Path
from typing import Any

from absl import flags

from dpmf_jax.commands import reading

_MODEL = flags.DEFINE_string(
  'model', None, 'The --output folder of dpmf train.', required=True
)
_USERS = flags.DEFINE_list(
  'users', None, "Original ids, separated by commas, or 'all'."
)
_RATINGS = flags.DEFINE_string(
  'ratings', None, 'A file of ratings by new users, who are folded in.'
)
flags.adopt_module_key_flags(reading)
_SIMILAR_TO = flags.DEFINE_list(
  'similar_to', None, "Original ids of items, or 'all'."
)
_K = flags.DEFINE_integer('k', 10, 'Items per user.', lower_bound=1)
_FILTER_SEEN = flags.DEFINE_bool(
  'filter_seen', True, 'Leave out the items that a user rated.'
)
_WHY = flags.DEFINE_integer(
  'why', 0, "How many of the user's own items to name as reasons.", 0
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'A .csv or .parquet file to write; a table is printed else.'
)
_PAGE = flags.DEFINE_string(
  'page', None, 'An .html file to write, in which readers make their own lists.'
)

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
    *(() if _WHY.value else ('why',)),
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

  if _SIMILAR_TO.value is not None:
    return recommendations.similar_items(
      model, _wanted(_SIMILAR_TO.value), _K.value
    )
  users = None
  if _RATINGS.value is not None:
    try:
      ratings = formats.read(
        _RATINGS.value, **folding.read_with(model), **reading.options()
      )
    except OutsideScaleError as error:
      raise ValueError(f"{error.message}: that scale is the model's") from None
    model = folding.fold_in(model, ratings)
  else:
    users = _wanted(_USERS.value)
    if model.user_factors is None:
      raise ValueError(
        '--users: the user factors are not known here, as this system does not '
        'release them; fold users in by their own ratings, --ratings=FILE'
      )
  if _FILTER_SEEN.value and model.seen is None:
    raise ValueError(
      'which items were seen is not known here (private/seen.safetensors is '
      'missing); pass --nofilter_seen to recommend from all items'
    )
  return recommendations.recommend(
    model, users, _K.value, filter_seen=_FILTER_SEEN.value, why=_WHY.value
  )


def _because(reasons) -> str:
  names = (reason.title or str(reason.item) for reason in reasons)
  return '; '.join(names)


def _wanted(ids: list[str] | None) -> list[str] | None:
  """None stands for all of them."""
  return None if ids == ['all'] else ids


def _write_page(model, path: Path) -> None:
  from dpmf_jax import certificates
  from dpmf_jax.serving import page

  if _OUTPUT.value:
    raise ValueError('--output is for lists; --page=FILE.html is itself a file')
  if path.suffix not in ('.html', '.htm'):
    raise ValueError(f'--page={path} must end in .html, for browsers')
  page.write_page(model, certificates.read(_MODEL.value), path, k=_K.value)
  print(
    f'{len(model.item_ids)} items, {path.stat().st_size / 1e6:.2f} MB, written '
    f'to {path}: open it in a browser'
  )


def main(argv) -> None:
  del argv
  from dpmf_jax.ratings import writing
  from dpmf_jax.serving import models, recommendations

  asked = (_USERS, _RATINGS, _SIMILAR_TO, _PAGE)
  if sum(flag.value is not None for flag in asked) != 1:
    raise ValueError(
      'pass one of --users=ID,ID (or all), --ratings=FILE of new users, '
      '--similar_to=ITEM,ITEM and --page=FILE.html'
    )
  if _RATINGS.value is None:
    reading.check_unused('--users, --similar_to or --page')
  path = Path(_OUTPUT.value) if _OUTPUT.value else None
  if path is not None:
    writing.check_suffix(path)
  model = models.load_model(_MODEL.value)
  if _PAGE.value is not None:
    _write_page(model, Path(_PAGE.value))
    return
  found = _found(model)
  if not model.covered and (_USERS.value or not model.items_released):
    own = ': a list is for its user alone' if model.items_released else ''
    print(
      f'note: uses factors from private/, which no guarantee covers{own}',
      file=sys.stderr,
    )
  if not _SIMILAR_TO.value and recommendations.one_order(model.item_factors):
    print(f'note: {recommendations.ONE_ORDER}', file=sys.stderr)
  if not found:
    why = 'all items were seen'
    if _SIMILAR_TO.value:
      why = 'the model has learned no factors of these items'
    raise ValueError(f'there is nothing to recommend: {why}')
  if path is not None:
    writing.write_columns(_columns(found, bool(model.titles)), path)
    what = 'similar items' if _SIMILAR_TO.value else 'recommendations'
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
