"""The certificate of a run: what is promised, to whom, and on what grounds."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from typing import Any

import dpmf_jax
from dpmf_jax import accounting
from dpmf_jax.types import Guarantee

SCHEMA = 'dpmf_jax-certificate-1'
_PACKAGES = ('jax', 'jaxlib', 'optax', 'numpy', 'scipy')

NOT_COVERED = (
  'metrics.json, learning_curve.png and the progress shown while training: '
  'computed from the ratings without noise, for the curator only',
  'the folder private/: must not leave the curator',
  'a list of recommendations that leaves out seen items: it tells its reader '
  'which items the user has rated, so give it to that user only',
)


def _versions() -> dict[str, str]:
  return {
    'dpmf_jax': dpmf_jax.__version__,
    'python': platform.python_version(),
  } | {package: importlib.metadata.version(package) for package in _PACKAGES}


def _settings(config: Any) -> dict[str, Any]:
  """The fields of a config as JSON values."""
  values = {
    field.name: getattr(config, field.name)
    for field in dataclasses.fields(config)
  }
  plain = (str, int, float, bool, type(None))
  return {
    name: value
    if isinstance(value, plain)
    else list(value)
    if name == 'scale'
    else repr(value)
    for name, value in values.items()
  }


def randomness(seed: int | None) -> dict[str, Any]:
  """What the certificate says of the random key.

  A fixed seed is not written down here, but whoever runs the command again
  with it can take the noise off.
  """
  fixed = seed is not None
  return {
    'source': 'fixed seed' if fixed else 'operating system entropy',
    'generator': 'threefry2x32, 64-bit key',
    'valid_for_release': not fixed,
    'note': 'FOR EXPERIMENTS ONLY: whoever knows or guesses the seed can '
    'remove the noise'
    if fixed
    else 'the file with the key is removed when the run ends',
  }


def certificate(
  guarantee: Guarantee,
  *,
  system: str,
  config: Any,
  delta: float | None,
  seed: int | None,
  parameters: dict[str, Any] | None = None,
) -> dict[str, Any]:
  """The certificate of a finished run as JSON values.

  Args:
    guarantee: of the system that ran.
    system: its name.
    config: its config.
    delta: at which epsilon is stated; None where there is no guarantee.
    seed: the fixed seed of the run, or None for OS entropy.
    parameters: what else was public (device count, split, ...).
  """
  epsilon = None
  if guarantee.event is None:
    delta = None
  elif delta is None:
    raise ValueError('delta is needed to state a guarantee')
  else:
    epsilon = accounting.epsilon(guarantee, delta)
  accountant = {
    'proved': 'exact Gaussian differential privacy (Balle and Wang 2018; '
    'Dong, Roth and Su 2022)',
    'claimed': "the paper's own formula, which does not hold for what it runs",
    'none': 'none',
  }[guarantee.status]
  return {
    'schema': SCHEMA,
    'status': guarantee.status,
    'epsilon': epsilon,
    'delta': delta,
    'unit': guarantee.unit,
    'relation': guarantee.relation,
    'adversary': guarantee.adversary,
    'released': list(guarantee.released),
    'secret': list(guarantee.secret),
    'not_covered': list(NOT_COVERED),
    'assumptions': list(guarantee.assumptions),
    'mechanism': guarantee.mechanism,
    'event': repr(guarantee.event),
    'accountant': accountant,
    'system': system,
    'parameters': _settings(config) | (parameters or {}),
    'randomness': randomness(seed),
    'versions': _versions(),
  }


_PROTECTED = {
  ('rating', 'replace'): 'the value of any one rating (who rated what is '
  'public)',
  ('rating', 'add_remove'): 'any one rating, its value and that it exists',
  ('user', 'replace'): 'all ratings of any one user, as values',
  ('user', 'add_remove'): 'any one user with all ratings',
}


def text(certificate: dict[str, Any]) -> str:
  """The certificate in a few lines for a terminal."""
  status = certificate['status']
  if status == 'none':
    return 'Guarantee: NONE. This model is not private.'
  word = 'proved' if status == 'proved' else 'CLAIMED BY THE PAPER, NOT TRUE'
  what = _PROTECTED[certificate['unit'], certificate['relation']]
  lines = [
    f'Guarantee ({word}): epsilon = {certificate["epsilon"]:.4g}, '
    f'delta = {certificate["delta"]:.3g}',
    f'  protects   {what}',
    f'  against    {certificate["adversary"]}',
    f'  released   {", ".join(certificate["released"])}',
    f'  secret     {", ".join(certificate["secret"])}',
    f'  randomness {certificate["randomness"]["source"]}; '
    f'{certificate["randomness"]["note"]}',
  ]
  return '\n'.join(lines)
