"""The certificate of a run: what is promised, to whom, and on what grounds."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.resources
import json
import math
import platform
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import dpmf_jax
from dpmf_jax import accounting, files, plans
from dpmf_jax.accounting import groups, ledger_costs
from dpmf_jax.accounting.encoding import decode, encode
from dpmf_jax.certificates import planned, wording
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.types import Guarantee

SCHEMA = 'dpmf_jax-certificate-2'
# What proofs take to be as good as random, by JAX's name.
GENERATOR = 'threefry2x32'
# And what deployments draw their shares of noise from.
OPERATING_SYSTEMS = "the operating systems' own"
# Where a key may be from.
ENTROPY, SEED, CALLER = (
  'operating system entropy',
  'fixed seed',
  'given by the caller',
)
SOURCES = {
  ENTROPY: 'no file with the key is left when the run ends',
  SEED: 'FOR EXPERIMENTS ONLY: whoever knows or guesses the seed can remove '
  'the noise',
  CALLER: 'FOR EXPERIMENTS ONLY: nothing is known of how the key was drawn, '
  'and whoever knows or guesses it can remove the noise',
}
# A changed value, where ratings come and go; some of one person's ratings.
GROUPS = (2, 10)
_PACKAGES = ('jax', 'jaxlib', 'optax', 'numpy', 'scipy')

NOT_COVERED = (
  'metrics.json, learning_curve.png, error_cdf.png and the progress shown '
  'while training: computed from the ratings without noise, for the curator '
  'only',
  'the folder private/: must not leave the curator',
  'a list of recommendations that leaves out seen items: it tells its reader '
  'which items the user has rated, so give it to that user only',
  'that the run ended without an error: it stops where there is no rating, '
  'where a side of the split has none, where a rating is outside of the scale '
  'or of the public lists, and where factors or errors are not finite',
)

# By the names that `accounting.bounds` gives to its rules.
_RULES = {
  'exact': 'exact Gaussian differential privacy (Balle and Wang 2018; Dong, '
  'Roth and Su 2022)',
  'laplace': 'the exact curve of Laplace noise (Balle, Barthe and Gaboardi '
  '2018)',
  'basic': 'the sum of the epsilons (Dwork and Roth 2014, Theorem 3.16)',
  'optimal': 'optimal composition (Kairouz, Oh and Viswanath 2017)',
  'renyi_canonne': 'Renyi differential privacy at the best order (Mironov '
  '2017; Canonne, Kamath and Steinke 2020)',
  'renyi_mironov': 'Renyi differential privacy at the best order (Mironov '
  '2017)',
  'pld': 'privacy loss distributions (Koskela, Jalko and Honkela 2020; '
  'dp-accounting)',
  'claimed': "the paper's own formula, which does not hold for what it runs",
}


_version = functools.cache(importlib.metadata.version)  # reads files


def versions() -> dict[str, str]:
  """Those of the packages that run."""
  return {
    'dpmf_jax': dpmf_jax.__version__,
    'python': platform.python_version(),
  } | {package: _version(package) for package in _PACKAGES}


def _settings(config: Any) -> dict[str, Any]:
  """The fields of a config as JSON values."""
  if config is None:
    return {}
  values = {
    field.name: getattr(config, field.name)
    for field in dataclasses.fields(config)
  }
  return {
    name: list(value) if name == 'scale' else _plain(value)
    for name, value in values.items()
  }


def _plain(value: Any) -> Any:
  """`value` if JSON has it, else how Python writes it (also infinity)."""
  if isinstance(value, float) and not math.isfinite(value):
    return repr(value)
  return value if isinstance(value, str | int | float | None) else repr(value)


def randomness(source: str, generator: str) -> dict[str, Any]:
  """What the certificate says of the random key.

  Args:
    source: `ENTROPY`, `SEED` or `CALLER`.
    generator: of the key that was used (`keys.generator`).

  A fixed seed is not written down here, but whoever runs the command again
  with it can take the noise off.
  """
  return {
    'source': source,
    'generator': generator,
    'valid_for_release': source == ENTROPY,
    'note': SOURCES[source],
  }


def id_lists(ratings: Ratings | None, guarantee: Guarantee) -> dict[str, str]:
  """How the lists of users and items came about; from the ratings for None.

  Privacy: what is taken from the ratings tells of them, outside of the
  guarantee: an id is in a list because it has a rating.
  """
  public = frozenset() if ratings is None else ratings.public
  standing = lambda role: wording.PUBLIC if role in public else wording.COUNTED
  users = standing('users')
  if 'user ids' in guarantee.secret:
    bound = None if ratings is None else ratings.most_users
    known = users == wording.PUBLIC or bound is not None
    users = wording.SECRET if known else wording.SECRET_COUNTED
  return {'users': users, 'items': standing('items')}


def certificate(
  guarantee: Guarantee,
  *,
  system: str,
  config: Any,
  delta: float | None,
  randomness: Mapping[str, Any],
  features: tuple[Any, ...] = (),
  run: str | None = None,
  parameters: dict[str, Any] | None = None,
  lists: dict[str, str] | None = None,
  personal: dict[str, Any] | None = None,
  public_ratings: str | None = None,
) -> dict[str, Any]:
  """The certificate of a finished run as JSON values, valid by its schema.

  Args:
    guarantee: of the system that ran.
    system: its name.
    config: its config; None where a system has none.
    delta: at which epsilon is stated, 0 for the least there is; None where
      there is no guarantee.
    randomness: of the run's key (`keys.stated`).
    features: what the plan was made of besides the config.
    run: the id of the run, also in its ledger entry; None makes a new one.
    parameters: what else was public (device count, split, ...).
    lists: what `id_lists` says; by default that they are from the ratings.
    personal: what is said of each rating's own epsilon, or None where all have
      the same (`systems.personalized_pmf.personal`).
    public_ratings: name and hash of the public ratings that items start from;
      None where there are none.
  """
  status = guarantee.status
  if status == 'proved' and not _ours(guarantee, system, config, features):
    status = 'stated'
  generator = randomness['generator']
  known = GENERATOR, OPERATING_SYSTEMS
  if status == 'proved' and not generator.startswith(known):
    raise ValueError(
      f'generator={generator!r}: what is proved is about {GENERATOR}'
    )
  document = {
    'schema': SCHEMA,
    'date': datetime.now(UTC).isoformat(timespec='seconds'),
    'run': run or str(uuid.uuid4()),
    **_said(guarantee, delta),
    'status': status,
    'lists': lists or id_lists(None, guarantee),
    'not_covered': list(NOT_COVERED),
    'system': system,
    'parameters': _settings(config) | (parameters or {}),
    'randomness': dict(randomness),
    'versions': versions(),
  }
  if public_ratings is not None:
    document['parameters']['public_ratings'] = public_ratings
    document['assumptions'].append(wording.PUBLIC_RATINGS)
    document['not_covered'].append(wording.UNPROTECTED)
  if 'item_features' in document['parameters']:
    document['assumptions'].append(wording.ITEM_FEATURES)
  if personal is not None:
    document['personal'] = {**personal, 'worst_case': document['epsilon']}
  validate(document)
  return document


def _said(guarantee: Guarantee, delta: float | None) -> dict[str, Any]:
  """What a certificate says of a guarantee at `delta`."""
  epsilon, accountant = None, 'none'
  if guarantee.event is None:
    delta = None
  elif delta is None:
    raise ValueError('delta is needed to state a guarantee')
  else:
    delta = delta or accounting.uncovered(guarantee)
    bounds = accounting.bounds(guarantee, delta)
    rule = min(bounds, key=lambda name: bounds[name])
    epsilon = bounds[rule]
    single = isinstance(guarantee.event, accounting.Laplace)
    accountant = _RULES['laplace' if single and rule == 'exact' else rule]
  return {
    'status': guarantee.status,
    'epsilon': epsilon,
    'delta': delta,
    'unit': guarantee.unit,
    'relation': guarantee.relation,
    'adversary': guarantee.adversary,
    'released': list(guarantee.released),
    'secret': list(guarantee.secret),
    'assumptions': list(guarantee.assumptions),
    'groups': _groups(guarantee, delta),
    'mechanism': guarantee.mechanism,
    'event': guarantee.event and encode(guarantee.event),
    'accountant': accountant,
  }


def _ours(
  guarantee: Guarantee, system: str, config: Any, features: tuple[Any, ...]
) -> bool:
  """Whether this library has proved it: whether it is what its plan states."""
  if system not in plans.NAMES:
    return False
  spec = plans.SPECS[system]
  return (
    isinstance(config, cast(type, spec.config))
    and spec.plan(config, *features).guarantee == guarantee
  )


def _groups(guarantee: Guarantee, delta: float | None) -> list[dict[str, Any]]:
  """What is left for several units at once."""
  if delta is None:
    return []
  found = {size: groups.group(guarantee, delta, size) for size in GROUPS}
  return [
    {'size': size, 'epsilon': epsilon, 'delta': chance}
    for size, (epsilon, chance) in found.items()
  ]


def schema() -> dict[str, Any]:
  """The JSON schema (draft 2020-12) of a certificate; docs/ has a copy."""
  file = importlib.resources.files(__name__) / 'certificate.schema.json'
  return json.loads(file.read_text(encoding='utf-8'))


def validate(certificate: Any) -> None:
  """Returns nothing; ValueError names the first field that is wrong."""
  # Here and not above: it takes a tenth of a second, and the rest of this
  # module does not need it.
  from jsonschema import Draft202012Validator
  from jsonschema.exceptions import best_match

  errors = Draft202012Validator(schema()).iter_errors(certificate)
  problem = best_match(errors)
  if problem is not None:
    path = [str(part) for part in problem.absolute_path]
    raise ValueError(
      f'certificate{", field " if path else ""}{".".join(path)}: '
      f'{_shortened(problem.message)}'
    )
  # JSON has no NaN and no infinity, but Python reads and writes them.
  _check_finite(certificate, '')


def read(path: str | Path) -> dict[str, Any]:
  """The certificate in a run's folder or in a file, once it is found valid.

  Raises ValueError, which names the file, where it is broken, where its epsilon
  is not what its event gives, where it says of a system with its settings what
  this library does not (`planned.check`), or where a file beside it is not the
  one that it is of. Who changes all of them together is found by a signature
  (`certificates.signatures`) alone.
  """
  path = files.checked_path(path, 'path')
  if path.is_dir():
    path = path / 'certificate.json'
  document = files.read_json(path)
  try:
    validate(document)
    _check_epsilon(document)
    planned.check(document, _said)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None
  _check_files(path.parent, document)
  return document


def _check_epsilon(document: dict[str, Any]) -> None:
  """Raises ValueError where epsilon is not that of the event."""
  if document['event'] is None:
    return
  stated, event = document['epsilon'], decode(document['event'])
  found = min(accounting.bounds(event, document['delta']).values())
  # Another version may have a better bound, not a worse one.
  same = document['versions'].get('dpmf_jax') == dpmf_jax.__version__
  if stated < found * (1 - 1e-9) or (same and stated > found * (1 + 1e-9)):
    raise ValueError(
      f'certificate, field epsilon: {stated:.6g} is not what its event costs, '
      f'{found:.6g} at delta {ledger_costs.plain(document["delta"])}'
    )


def _check_files(folder: Path, document: Mapping[str, Any]) -> None:
  """Raises ValueError where a file in `folder` is not the certificate's."""
  for name, digest in document.get('files', {}).items():
    if name != Path(name).name:  # a certificate has no say beyond its folder
      raise ValueError(
        f'{folder / "certificate.json"}: {name[:80]!r} is no name of a file'
      )
    path = folder / name
    if path.is_file() and files.sha256(path) != digest:
      raise ValueError(
        f'{path} is not the file that certificate.json is of: its SHA-256 is '
        'another; take both from the same run'
      )


def _check_finite(value: Any, path: str) -> None:
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f'certificate, field {path}: {value} is not finite')
  parts = ()
  if isinstance(value, dict):
    parts = value.items()
  elif isinstance(value, list):
    parts = enumerate(value)
  for name, part in parts:
    _check_finite(part, f'{path}.{name}' if path else str(name))


def _shortened(message: str) -> str:
  # The message begins with the value, which may be long, and ends with what
  # is wrong with it.
  if len(message) <= 160:
    return message
  return f'{message[:70]} ... {message[-80:]}'
