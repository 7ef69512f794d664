"""Splits into training and test ratings that keep neighbours neighbours.

A system is private for the ratings it is given, the training side. That says
something about all the ratings only if two data sets that differ in one
rating give training sides that differ in at most one. A shuffle does not:
one more rating moves all the others. So the place of a rating here depends
on the seed and its own user and item id, through a hash, and never on its
position, on its value or on how many ratings there are. Ids are hashed as
text, so that an id that appears or disappears does not move other ratings.

The seed is public and must be chosen without looking at the data. The test
side is not protected by anything: an error measured on it and published is
computed from raw ratings.

A timestamp is part of a rating, as its ids are: what is held out may be the
last of each user.
"""

from __future__ import annotations

import numpy as np

from dpmf_jax.ratings.table import DataError, Ratings, check_ratings

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def random_split(
  ratings: Ratings, test_fraction: float, *, seed: int
) -> tuple[Ratings, Ratings]:
  """Returns (train, test); each rating is in test with `test_fraction`.

  Privacy: a rating's side is a function of the seed and its own ids. Adding,
  removing or changing one rating therefore adds, removes or changes at most
  that rating on the training side.
  """
  check_ratings(ratings)
  if not 0 < test_fraction < 1:
    raise DataError(f'test_fraction={test_fraction} is not between 0 and 1')
  return _sides(ratings, uniforms(ratings, seed) < test_fraction)


def fold(
  ratings: Ratings, number: int, *, folds: int, seed: int
) -> tuple[Ratings, Ratings]:
  """Returns (train, test) with part `number` of `folds` in test, from 0.

  Every rating is in one part, and parts are about equally large.

  Privacy: as for `random_split`. That says nothing of several parts together:
  each rating is trained on in all of them but one.
  """
  check_ratings(ratings)
  if folds < 2 or not 0 <= number < folds:
    raise DataError(
      f'number={number} of folds={folds} is not below them, or there are not 2'
    )
  part = (uniforms(ratings, seed) * folds).astype(np.int64)
  return _sides(ratings, part == number)


def hold_out_per_user(
  ratings: Ratings, count: int, *, seed: int
) -> tuple[Ratings, Ratings]:
  """Returns (train, test) with the `count` ratings of largest hash per user.

  A user with `count` ratings or fewer has all of them in test, none in train.

  Privacy: a user's test side is the top `count` in an order that is fixed
  for each pair of ids. A new rating that is not among the top joins train. One
  that is pushes the last of the top into train, or nothing if the user had
  fewer than `count`. Either way train gains at most one rating; read
  backwards for a removal. The values play no part, so a changed value changes
  at most that one.
  Keeping users with few ratings in train instead would break this: one more
  rating would then take `count` others out of train. Already for `count` = 1,
  train must hold a when it is alone and b when it is alone, and no train side
  for {a, b} with one rating in it is one step from both.
  """
  if count < 1:
    raise DataError(f'count={count} is not at least 1')
  return _sides(ratings, _top(ratings, count, _hashes(ratings, seed)))


def hold_out_last(
  ratings: Ratings, *, seed: int = 0
) -> tuple[Ratings, Ratings]:
  """Returns (train, test) with the last rating of each user in test.

  Of those with the same timestamp the one with the largest hash is the last. A
  user with one rating has none in train.

  Privacy: as for `hold_out_per_user`, in the order of a rating's own timestamp.
  """
  check_ratings(ratings)
  if ratings.timestamp is None:
    raise DataError(
      f"{ratings.name} has no timestamps, which split='last' needs: use "
      "split='random', or name their column, timestamp, in columns="
    )
  order = _hashes(ratings, seed), ratings.timestamp
  return _sides(ratings, _top(ratings, 1, *order))


def uniforms(ratings: Ratings, seed: int) -> np.ndarray:
  """Returns [N] float64 in [0, 1), a function of (seed, user id, item id)."""
  return (_hashes(ratings, seed) >> np.uint64(11)) * 2.0**-53


def _hashes(ratings: Ratings, seed: int) -> np.ndarray:
  """Returns a 64-bit hash of (seed, user id, item id) for each rating."""
  if not 0 <= seed < 2**64:
    raise DataError(f'seed={seed} is not in 0..2^64-1')
  start = _mix(np.full(1, seed, np.uint64))
  users = hashed_ids(ratings.user_ids, start)
  items = hashed_ids(ratings.item_ids, start)
  # Not symmetric: user 1 on item 2 is not user 2 on item 1.
  return _mix(_mix(users)[ratings.user] ^ items[ratings.item])


def hashed_ids(ids: np.ndarray, start: np.ndarray) -> np.ndarray:
  """Returns one hash per id, from its text, whatever the array's width."""
  text = np.ascontiguousarray(ids.astype(str))
  letters = text.view(np.uint32).reshape(len(ids), -1).astype(np.uint64)
  state = np.repeat(start, len(ids))
  for letter in letters.T:
    state = np.where(letter == 0, state, _mix(state ^ letter))
  return state


def _mix(word: np.ndarray) -> np.ndarray:
  """Returns the splitmix64 output for each uint64 word.

  Reference: Steele, Lea and Flood (2014), Fast splittable pseudorandom number
  generators, the finaliser in its fig. 14 with Stafford's Mix13 constants.
  """
  word = word + _GOLDEN  # wraps
  word = (word ^ (word >> np.uint64(30))) * _MIX1
  word = (word ^ (word >> np.uint64(27))) * _MIX2
  return word ^ (word >> np.uint64(31))


def _top(ratings: Ratings, count: int, *keys: np.ndarray) -> np.ndarray:
  """Returns the mask of each user's `count` largest, by the last key first."""
  # The item makes the order total, so that equal hashes cannot depend on
  # the positions of the ratings.
  order = np.lexsort((ratings.item, *keys, ratings.user))
  total = np.bincount(ratings.user, minlength=ratings.num_users)
  from_end = np.cumsum(total)[ratings.user[order]] - np.arange(len(ratings))
  mask = np.zeros(len(ratings), bool)
  mask[order] = from_end <= count
  return mask


def _sides(ratings: Ratings, test: np.ndarray) -> tuple[Ratings, Ratings]:
  if test.all() or not test.any():
    side = 'training' if test.all() else 'test'
    raise DataError(
      f'{ratings.name}: the {side} side of the split would be empty; hold out '
      'another share, or use more ratings or another seed'
    )
  return ratings.take(~test), ratings.take(test)
