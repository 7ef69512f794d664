"""Prints how private something is, or would be, as JSON on one line.

No data and no JAX are needed. Examples:

What the paper claims for 1250 steps, and what its noise is worth:

  dpmf account --system=gaussian_mf --variant=paper --steps=1250 \\
    --epsilon_per_step=0.3 --delta_per_step=0.01 --delta=1e-5

The noise that is needed for epsilon = 1, where the value of a rating is
protected and who rated what is public:

  dpmf account --system=gaussian_mf --relation=replace \\
    --steps=100 --epsilon=1 --delta=1e-6

The epsilon of given noise, where it is also protected that a rating exists:

  dpmf account --system=gaussian_mf --relation=add_remove \\
    --residual_bound=2 --steps=100 --sigma=60 --delta=1e-6

Plain mechanisms, here ten randomized responses:

  dpmf account --system=randomized_response --steps=10 \\
    --epsilon_per_release=1 --delta=1e-6

Many answers in a table, also as CSV, and epsilon against steps, or delta, as a
picture:

  dpmf account --system=gaussian_mf --table=epsilon \\
    --epsilon=0.5,1,2 --steps=60 --csv=noise.csv
  dpmf account --system=gaussian --noise_multiplier=20 \\
    --table=steps --steps=100,200,400 --plot=steps.png
  dpmf account --system=power_mf --epsilon=1 --plot=delta.png --plot_by=delta

The certificate of a run, checked and in words:

  dpmf account --certificate=runs/first --html=first.html

Signed, so that others can tell whose it is, and checked:

  openssl genpkey -algorithm ed25519 -out key.pem
  openssl pkey -in key.pem -pubout -out public.pem
  dpmf account --certificate=runs/first --sign=key.pem
  dpmf account --certificate=runs/first --verify=public.pem

What all runs in a ledger cost together, when that holds, what is left, and all
its rows; another budget, which is put down; and what an earlier version wrote:

  dpmf account --ledger=ml-100k.db --format=html > ledger.html
  dpmf account --ledger=ml-100k.db --set_budget=5 --reason='second study'
  dpmf account --import_ledger=ml-100k.ledger --ledger=ml-100k.db

Any system of dpmf train, with its settings; those that are not given are as
in training:

  dpmf account --system=power_mf --epsilon=1 --rank=8
  dpmf account --system=dpals --epsilon=5 --rank=2

`sigma` is the first scale of `noise`, in the units that `mechanism` names; of
Gaussian noise it is the standard deviation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from absl import flags

from dpmf_jax import plans
from dpmf_jax.commands import account_output, accounts, cli, plugins, settings
from dpmf_jax.commands.accounts import Answer
from dpmf_jax.plans import selection
from dpmf_jax.plans.selection import Selected

flags.adopt_module_key_flags(plugins)
# What has several values in a table has a flag that takes a list.
_FLAGS = settings.define(several=('steps', 'epsilon'))
_STEPS, _EPSILON = _FLAGS['steps'], _FLAGS['epsilon']
_NOISE_MULTIPLIER, _RELATION = _FLAGS['noise_multiplier'], _FLAGS['relation']
_PLAIN = ('gaussian', 'subsampled_gaussian', 'laplace', 'randomized_response')
_SYSTEM = flags.DEFINE_enum(
  'system',
  None,
  [*plans.SPECS, *_PLAIN],
  f'What is run: a system, or a plain mechanism --steps times '
  f'({", ".join(_PLAIN)}).\n{settings.SYSTEM_HELP}',
)
_VARIANT = settings.define_variant()
_SCALE = flags.DEFINE_list('scale', ['1', '5'], 'Lowest and highest rating.')
_DELTA = flags.DEFINE_float(
  'delta', 1e-6, 'Overall delta, in (0, 1/4]; also 0 where noise is pure.'
)
_TABLE = flags.DEFINE_enum(
  'table',
  None,
  ['steps', 'epsilon'],
  'Print a table with one row for each of --steps or of --epsilon.',
)
_CSV = flags.DEFINE_string('csv', None, 'File for the table, with all digits.')
_PLOT = flags.DEFINE_string(
  'plot', None, 'PNG file for epsilon against --plot_by, at the same noise.'
)
_PLOT_BY = flags.DEFINE_enum(
  'plot_by', 'steps', ['steps', 'delta'], 'What --plot is over.'
)
_CERTIFICATE = flags.DEFINE_string(
  'certificate', None, 'Folder of a run, whose certificate is to be shown.'
)
_SIGN = flags.DEFINE_string(
  'sign', None, 'Ed25519 key (PEM) to sign that certificate with.'
)
_VERIFY = flags.DEFINE_string(
  'verify', None, 'Public key (PEM) that its signature must be of.'
)
_HTML = flags.DEFINE_string('html', None, 'File for the certificate as HTML.')
_MARKDOWN = flags.DEFINE_string(
  'markdown', None, 'File for the certificate as Markdown.'
)
_LEDGER = flags.DEFINE_string(
  'ledger', None, 'That of dpmf train --ledger, which is to be shown.'
)
_FORMAT = flags.DEFINE_enum(
  'format', None, ['text', 'json', 'html'], 'What --ledger is shown as: text.'
)
_HEAD = flags.DEFINE_string(
  'head',
  None,
  'Hash of a row that --ledger must have: a head that was noted, to see that '
  'nothing was cut off since.',
)
_SET_BUDGET = flags.DEFINE_string(
  'set_budget',
  None,
  'Another budget for --ledger from now on, or unlimited. One that is raised '
  'does not hold for runs that are chosen after seeing earlier ones.',
)
_REASON = flags.DEFINE_string('reason', None, 'Why --set_budget; it is kept.')
_IMPORT_LEDGER = flags.DEFINE_string(
  'import_ledger',
  None,
  'Ledger of an earlier version, a file of lines, to be made the new --ledger. '
  'It is renamed to *.imported; no run may be using it.',
)
_OF_LEDGERS = _FORMAT, _HEAD, _SET_BUDGET, _REASON, _IMPORT_LEDGER
_SIGMA = flags.DEFINE_float(
  'sigma',
  None,
  'gaussian_mf, sound: noise of the user gradient, instead of --epsilon.',
)
_EPSILON_PER_RELEASE = flags.DEFINE_float(
  'epsilon_per_release',
  None,
  'laplace, randomized_response: epsilon of each release, instead of '
  '--epsilon.',
)
_CATEGORIES = flags.DEFINE_integer(
  'categories', 2, 'randomized_response: how many answers there are.'
)
_SAMPLING_RATE = flags.DEFINE_float(
  'sampling_rate', None, 'subsampled_gaussian: chance to be in a sample.'
)
_SAMPLING = flags.DEFINE_enum(
  'sampling',
  'poisson',
  ['poisson', 'without_replacement'],
  'subsampled_gaussian: every record on its own (for add_remove), or a sample '
  'of fixed size (for replace).',
)
# What a plain mechanism reads besides --steps, --delta, --epsilon, --relation.
_READS = {
  'gaussian': (_NOISE_MULTIPLIER,),
  'subsampled_gaussian': (_NOISE_MULTIPLIER, _SAMPLING_RATE, _SAMPLING),
  'laplace': (_NOISE_MULTIPLIER, _EPSILON_PER_RELEASE),
  'randomized_response': (_EPSILON_PER_RELEASE, _CATEGORIES),
}
_OF_PLAIN = (_EPSILON_PER_RELEASE, _CATEGORIES, _SAMPLING_RATE, _SAMPLING)


def _names(found: Sequence[flags.FlagHolder]) -> list[str]:
  return [flag.name for flag in found]


# What --help shows together, and what not every system reads.
GROUPS = {
  'system': ('system', 'plugin'),
  'privacy': (
    'variant', 'scale', 'epsilon', 'delta', 'relation', 'steps',
    'noise_multiplier', 'sigma', *_names(_OF_PLAIN),
  ),
  'a run or a ledger instead': (
    'certificate', 'sign', 'verify', 'ledger', 'format', 'head', 'set_budget',
    'reason', 'import_ledger',
  ),
  'output': ('table', 'csv', 'plot', 'plot_by', 'html', 'markdown'),
}  # fmt: skip
ONLY = {'sigma': ('gaussian_mf',)} | {
  flag.name: [k for k, read in _READS.items() if flag.name in _names(read)]
  for flag in _OF_PLAIN
}


def system_answer(
  name: str, steps: int | None, epsilon: float | None
) -> Answer:
  """What a system of dpmf train would spend, from its plan."""
  given = {key: flag.value for key, flag in _FLAGS.items()}
  given |= {'steps': steps, 'epsilon': epsilon}
  if _SIGMA.value is not None:
    given = _with_sigma(name, given)
  return accounts.planned(_chosen(name, given), _DELTA.value)


def _chosen(name: str, given: dict[str, Any]) -> Selected:
  return selection.selected(
    name,
    given,
    variant=_VARIANT.value,
    delta=_DELTA.value if _DELTA.present else None,
    scale=cli.scale(_SCALE.value),
  )


def _with_sigma(name: str, given: dict[str, Any]) -> dict[str, Any]:
  """--sigma as the noise multiplier that it stands for."""
  sigma = cast(float, _SIGMA.value)
  if name != 'gaussian_mf' or _VARIANT.value not in (None, 'sound'):
    raise ValueError('--sigma is for --system=gaussian_mf --variant=sound')
  if not sigma > 0:
    raise ValueError(
      f'--sigma must be > 0, got {sigma}: without noise there is no epsilon'
    )
  _one_of(given['epsilon'], _SIGMA, _NOISE_MULTIPLIER)
  # So much that its ends cost nothing; noise is proportional to it.
  one = _chosen(name, given | {'noise_multiplier': 1e3})
  noise = one.spec.plan(one.config).noise['user gradient']
  return given | {'noise_multiplier': 1e3 * (sigma / noise)}


def plain_answer(system: str, steps: int, epsilon: float | None) -> Answer:
  """What a plain mechanism spends, from the flags that it reads."""
  delta, relation = _DELTA.value, _RELATION.value
  read = _names((*_READS[system], _STEPS, _EPSILON, _RELATION))
  for flag in (*_FLAGS.values(), *_OF_PLAIN, _SIGMA, _VARIANT):
    if flag.present and flag.name not in read:
      raise ValueError(f'--{flag.name} is not for --system={system}')
  if system == 'gaussian':
    given = _one_of(epsilon, _NOISE_MULTIPLIER)
    return accounts.gaussian(steps, delta, *given, relation=relation)
  if system == 'subsampled_gaussian':
    return accounts.subsampled_gaussian(
      steps,
      delta,
      *_one_of(epsilon, _NOISE_MULTIPLIER),
      relation=relation,
      sampling_rate=_given(_SAMPLING_RATE),
      sampling=cast(Any, _SAMPLING.value),
    )
  if system == 'laplace':
    given = _one_of(epsilon, _NOISE_MULTIPLIER, _EPSILON_PER_RELEASE)
    return accounts.laplace(steps, delta, *given, relation=relation)
  if relation == 'add_remove':
    raise ValueError(
      '--relation must be replace for --system=randomized_response, got '
      'add_remove: an answer is always there'
    )
  given = _one_of(epsilon, _EPSILON_PER_RELEASE)
  categories = _given(_CATEGORIES)
  return accounts.randomized_response(
    steps, delta, *given, categories=categories
  )


def main(_: Sequence[str]) -> None:
  if _CERTIFICATE.value is not None:
    return show_certificate()
  if _LEDGER.value is not None:
    return show_ledger()
  _refuse('an account; it needs --ledger', *_OF_LEDGERS)
  _refuse(
    'an account; it needs --certificate', _HTML, _MARKDOWN, _SIGN, _VERIFY
  )
  system, table = _given(_SYSTEM), _TABLE.value
  plain = system in _PLAIN
  if plain:
    _given(_STEPS)
  else:
    _refuse(f'--system={system}', *(f for f in _OF_PLAIN if f.present))
  steps = _numbers(_STEPS, int) or [None]
  for count in steps:
    if count is not None and count < 1:
      raise ValueError(f'--steps must be >= 1, got {count}')
  if not 0 <= _DELTA.value <= 0.25:
    raise ValueError(f'--delta must be in (0, 1/4], got {_DELTA.value}')
  epsilons = _numbers(_EPSILON, float) or [None]
  for flag, values in ((_STEPS, steps), (_EPSILON, epsilons)):
    if len(values) > 1 and table != flag.name:
      raise ValueError(
        f'--{flag.name}={",".join(flag.value or ())} has several values, which '
        f'needs --table={flag.name}'
      )
  if table is None:
    _refuse('a single answer; it needs --table', _CSV)
  else:
    _given(_STEPS if table == 'steps' else _EPSILON)
  if table == 'epsilon':
    _refuse('--table=epsilon; it is over steps', _PLOT)
  answer_for = plain_answer if plain else system_answer
  answers = [
    answer_for(system, cast(Any, count), epsilon)
    for count in steps
    for epsilon in epsilons
  ]
  rows = [{'system': system} | answer.values for answer in answers]
  # allow_nan=False: an epsilon past the largest float is an error, not 'NaN'.
  lines = [json.dumps(row, allow_nan=False) for row in rows]
  if _PLOT.value is not None:
    longest = max(answers, key=lambda answer: answer.values['steps'])
    account_output.draw(_PLOT.value, _PLOT_BY.value, system, longest)
  if table is not None:
    return account_output.show_table(table, rows, _CSV.value)
  print(*lines)


def show_certificate() -> None:
  """Checks the certificate of a run, prints it, and writes other formats."""
  _refuse('--certificate', _SYSTEM, _STEPS, _EPSILON, _TABLE, _CSV, _PLOT)
  _refuse('--certificate', _LEDGER, *_OF_LEDGERS)
  if _DELTA.present:
    raise ValueError('--delta is not for --certificate: it has its own')
  from dpmf_jax import certificates, files
  from dpmf_jax.certificates import rendering

  document = certificates.read(_CERTIFICATE.value or '')
  _sign_or_verify(Path(_CERTIFICATE.value or ''))
  lines = [rendering.text(document)]
  for flag, render in (
    (_HTML, rendering.html),
    (_MARKDOWN, rendering.markdown),
  ):
    if flag.value is not None:
      files.write_bytes(flag.value, render(document).encode())
      lines.append(f'\nwritten to {flag.value}')
  print('\n'.join(lines))


def _sign_or_verify(folder: Path) -> None:
  """What --sign and --verify ask for, of the certificate in a run's folder."""
  from dpmf_jax.certificates import signatures

  if (_SIGN.value or _VERIFY.value) and not folder.is_dir():
    raise ValueError(f'--certificate={folder} must be a folder, to be signed')
  if _SIGN.value:
    print('signed: ', signatures.sign(folder, _SIGN.value), '\n', sep='')
  if _VERIFY.value:
    signatures.verify(folder, _VERIFY.value)
    print(f'the signature is of {_VERIFY.value}\n')


def show_ledger() -> None:
  """Changes the ledger if that is asked for, and prints it."""
  _refuse('--ledger', _SYSTEM, _STEPS, _EPSILON, _TABLE, _CSV, _PLOT)
  _refuse('--ledger', _HTML, _MARKDOWN, _SIGN, _VERIFY)
  from dpmf_jax.accounting import ledger
  from dpmf_jax.commands import ledgers

  where, budget = _given(_LEDGER), ledgers.budget(_SET_BUDGET)
  if _IMPORT_LEDGER.value is not None:
    _refuse('--import_ledger', _SET_BUDGET, _REASON, _HEAD)
    ledger.import_lines(_IMPORT_LEDGER.value, where)
  elif budget is not None:
    ledger.set_budget(where, budget, reason=_given(_REASON))
  else:
    _refuse('--ledger; it needs --set_budget', _REASON)
  report = ledger.report(where, head=_HEAD.value)
  print(ledgers.FORMATS[_FORMAT.value or 'text'](report))


def _numbers(
  flag: flags.FlagHolder[Any], kind: Callable[[str], Any]
) -> list[Any]:
  """The numbers of a list flag; none if it was not given."""
  if flag.value is None:
    return []
  try:
    numbers = [kind(word) for word in flag.value]
  except ValueError:
    numbers = []
  if not numbers:
    what = 'whole numbers' if kind is int else 'numbers'
    raise ValueError(
      f'--{flag.name}={",".join(flag.value)} must be {what}, with commas '
      'between several'
    )
  return numbers


def _given(flag: flags.FlagHolder[Any]) -> Any:
  if flag.value is None:
    raise ValueError(f'--{flag.name} must be given (see --help)')
  return flag.value


def _one_of(
  epsilon: float | None, *others: flags.FlagHolder[float | None]
) -> tuple[str, float]:
  """The name and value of the only one that was given."""
  values = {'epsilon': epsilon} | {flag.name: flag.value for flag in others}
  given = [(k, value) for k, value in values.items() if value is not None]
  if len(given) == 1:
    return given[0]
  *names, last = (f'--{name}' for name in values)
  got = ' and '.join(f'--{name}' for name, _ in given) or 'none of them'
  raise ValueError(
    f'exactly one of {", ".join(names)} and {last} must be given, got {got}'
  )


def _refuse(variant: str, *unused: flags.FlagHolder[Any]) -> None:
  for flag in unused:
    if flag.value is not None:
      raise ValueError(f'--{flag.name} is not for {variant}')
