"""What a model folder holds, before anything is computed from it.

A folder may be anybody's: what is wrong in it is a ValueError that names the
file, and not an array of another shape somewhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.ratings.ids import id_array

_AXES = {'U': 'users', 'I': 'items', 'D': 'columns', 'N': 'ratings'}
# By letters of axes. What else is there is not read.
_SHAPES = {
  'factors/user': 'UD',
  'factors/item': 'ID',
  'offset': '',
  'number': 'I',
  'fit/prior': 'D',
  'fit/ridge': 'D',
  'fit/weight': 'I',
  'fit/counted/low': '',
  'fit/counted/least': '',
  'fit/counted/slope': '',
}
_SEEN = {'user': 'N', 'item': 'N', 'value': 'N'}
_FITS = (
  {'fit/prior', 'fit/ridge'},
  {'fit/prior', 'fit/weight', *(n for n in _SHAPES if 'counted' in n)},
)


def checked_ids(ids: dict[str, Any], path: Path) -> dict[str, Any]:
  """The content of ids.json, with arrays of ids."""
  if 'items' not in ids:
    raise ValueError(f"{path}: has no 'items', the list of their ids")
  found = dict(ids)
  for role in ('users', 'items'):
    if role not in ids:
      continue
    if not isinstance(ids[role], list):
      raise ValueError(f'{path}: {role!r} must be a list of ids')
    found[role] = id_array(ids[role], f'{path}, {role}')
  titles = ids.get('titles', {})
  if not isinstance(titles, dict) or not all(
    isinstance(title, str) for title in titles.values()
  ):
    raise ValueError(f"{path}: 'titles' must be an object of texts")
  if not isinstance(ids.get('clicks', False), bool):
    raise ValueError(f"{path}: 'clicks' must be true or false")
  return found


def check_leaves(leaves: dict[str, np.ndarray], path: Path) -> None:
  """Raises ValueError unless shapes fit together and numbers are finite."""
  sizes = _check_shapes(leaves, _SHAPES, path)
  if 'offset' not in leaves:
    raise ValueError(f'{path}: has no offset')
  fit = {name for name in leaves if name.startswith('fit/')}
  if fit and fit not in _FITS:
    raise ValueError(f'{path}: has {sorted(fit)}, which is no fit of users')
  for name in leaves.keys() & _SHAPES.keys():
    leaf = leaves[name]
    if leaf.dtype.kind != 'f':
      raise ValueError(f'{path}, leaf {name}: {leaf.dtype} must be floats')
    # An infinite ridge holds a column.
    good = leaf > 0 if name == 'fit/ridge' else np.isfinite(leaf)
    if not good.all():
      raise ValueError(f'{path}, leaf {name}: has {leaf[~good].flat[0]}')
  if not sizes.get('D', 1):
    raise ValueError(f'{path}: factors have no columns')


def check_seen(
  leaves: dict[str, np.ndarray], path: Path, shape: tuple[int, int]
) -> None:
  """Raises ValueError unless they are places of `shape` users and items."""
  _check_shapes(leaves, _SEEN, path)
  for name, size in zip(('user', 'item'), shape, strict=True):
    place = leaves.get(name)
    if place is None or place.dtype.kind not in 'iu':
      raise ValueError(f'{path}: has no {name}, places of {name}s')
    if len(place) and not 0 <= int(place.min()) <= int(place.max()) < size:
      raise ValueError(f'{path}: {name} is not in 0..{size - 1} everywhere')


def _check_shapes(
  leaves: dict[str, np.ndarray], shapes: dict[str, str], path: Path
) -> dict[str, int]:
  """The sizes by letter, which are the same wherever a letter is."""
  sizes: dict[str, int] = {}
  for name, letters in shapes.items():
    if name not in leaves:
      continue
    shape = leaves[name].shape
    if name == 'fit/weight' and len(shape) == 2:
      letters = 'ID'  # one for each column
    wanted = [sizes.get(letter) for letter in letters]
    fits = len(shape) == len(wanted) and all(
      want in (None, size) for want, size in zip(wanted, shape, strict=False)
    )
    if not fits:
      said = ', '.join(str(sizes.get(each, _AXES[each])) for each in letters)
      raise ValueError(
        f'{path}, leaf {name}: has shape {list(shape)}, not [{said}]'
      )
    sizes |= dict(zip(letters, shape, strict=True))
  return sizes
