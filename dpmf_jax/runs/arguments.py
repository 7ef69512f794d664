"""What the arguments of `train` must be, before there is anything to run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpmf_jax import keys
from dpmf_jax.plans import selection
from dpmf_jax.runs import folders, logs
from dpmf_jax.runs.choosing import Chosen

_READ = 'dpmf_jax.read and from_dataframe take it, and make Ratings for train'
# Names that people try -> what there is.
_ELSEWHERE = {
  'columns': _READ,
  'duplicates': _READ,
  'seed': 'key is the seed of noise, for experiments, split_seed that of the '
  'held-out ratings',
}


def first_key(key: jax.Array | int | None) -> jax.Array:
  """The key of a run, from a seed or from the operating system."""
  if isinstance(key, jax.Array):
    return key
  whole = isinstance(key, int | np.integer) and not isinstance(key, bool)
  if not (key is None or whole):
    raise ValueError(
      f'key={key!r} must be None, an integer as a seed, or a key of JAX'
    )
  return keys.random_key(key)


def check_elsewhere(settings: Mapping[str, Any]) -> None:
  """Raises ValueError for what is no setting, but is said in another way."""
  for name in settings.keys() & _ELSEWHERE.keys():
    raise ValueError(
      f'{name}={settings[name]!r} is not an argument of train: '
      f'{_ELSEWHERE[name]}'
    )


def held_out_share(split: str, fraction: float | None) -> float | None:
  """The part of the ratings that is held out; None is the last of each user."""
  if split not in ('random', 'last'):
    raise ValueError(f"split={split!r} must be 'random' or 'last'")
  if split == 'random':
    return 0.2 if fraction is None else fraction
  if fraction is not None:
    raise ValueError(
      f"test_fraction={fraction} is for split='random': 'last' holds out the "
      'last of each user'
    )
  return None


def check_evaluation(
  fraction: float | None,
  seed: int,
  cutoffs: Sequence[int],
  threshold: float | None,
) -> None:
  if fraction is not None and not (
    _is_number(fraction, Real) and 0 <= fraction < 1
  ):
    raise ValueError(f'test_fraction={fraction!r} must be in [0, 1)')
  if not (isinstance(seed, int | np.integer) and 0 <= seed < 2**64):
    raise ValueError(f'split_seed={seed!r} must be an integer in 0..2^64-1')
  if isinstance(cutoffs, int | str):
    raise ValueError(f'ranking_k={cutoffs!r} must be a list, such as [5, 10]')
  if not all(isinstance(k, int) and k >= 1 for k in cutoffs):
    shown = ','.join(map(str, cutoffs))
    raise ValueError(f'ranking_k={shown} must be numbers of at least 1')
  if cutoffs and fraction == 0:
    raise ValueError('ranking_k needs held-out ratings: test_fraction above 0')
  if not cutoffs and threshold is not None:
    raise ValueError(f'ranking_threshold={threshold} needs ranking_k')


def check_reports(every: Any, seconds: Any) -> None:
  if every is not None and not (_is_number(every, int) and every >= 1):
    raise ValueError(f'report_every={every!r} must be an integer from 1')
  if not (_is_number(seconds, Real) and seconds >= 0):
    raise ValueError(f'checkpoint_seconds={seconds!r} must be at least 0')


def check_logs(
  chosen: Chosen,
  curves: Any,
  tensorboard: Any,
  output: str | Path | None,
  overwrite: bool,
) -> None:
  given = {'curves': curves, 'tensorboard': tensorboard}
  given = {name: value for name, value in given.items() if value is not None}
  if not given:
    return
  if chosen.task == 'ranking':
    name, value = next(iter(given.items()))
    raise ValueError(
      f'{name}={value} is for errors of ratings, and system={chosen.name} '
      'makes lists, which are measured at the end: leave it out'
    )
  goes_on = output is not None and folders.interrupted(Path(output))
  logs.check(curves, tensorboard, output=output, replace=overwrite or goes_on)


def _is_number(given: Any, kind: type) -> bool:
  return isinstance(given, kind) and not isinstance(given, bool)


def further(
  public: Mapping[str, str], known: set[str], chosen: Chosen
) -> Mapping[str, str]:
  """`public`, none of which is said already, maybe in another way."""
  if chosen.spec:
    known = known | selection.fields(chosen.spec)
  if twice := sorted(public.keys() & known):
    raise ValueError(
      f'public has {twice[0]!r}, which the certificate says itself: use '
      'another name'
    )
  return public


def check_apart(ratings: Any, public: Any) -> None:
  """Refuses ratings that are given as private and as public, by name alone."""
  named = all(isinstance(x, str | os.PathLike) for x in (ratings, public))
  if public is ratings or (named and os.fspath(ratings) == os.fspath(public)):
    raise ValueError(
      'public_ratings are the ratings themselves, which are private: give '
      'others, that anyone may see'
    )
