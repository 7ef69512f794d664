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
from typing import Any, Literal, cast

from absl import flags

from dpmf_jax import plans
from dpmf_jax.commands import (
  account_output,
  accounts,
  cli,
  declaring,
  plugins,
  settings,
)
from dpmf_jax.commands.accounts import Answer
from dpmf_jax.plans import selection
from dpmf_jax.plans.selection import Selected

flags.adopt_module_key_flags(plugins)
# What has several values in a table has a flag that takes a list.
_SETTINGS = settings.define(several=('steps', 'epsilon'))
_PLAIN = ('gaussian', 'subsampled_gaussian', 'laplace', 'randomized_response')
flags.DEFINE_enum(
  'system',
  None,
  [*plans.SPECS, *_PLAIN],
  f'What is run: a system, or a plain mechanism --steps times '
  f'({", ".join(_PLAIN)}).\n{settings.SYSTEM_HELP}',
)


class _Declared(settings.Variant):
  """What is asked for; systems have their settings besides.

  Attributes:
    scale: Lowest and highest rating.
    delta: Overall delta, in (0, 1/4]; also 0 where noise is pure.
    table: Print a table with one row for each of --steps or of --epsilon.
    csv: File for the table, with all digits.
    plot: PNG file for epsilon against --plot_by, at the same noise.
    plot_by: What --plot is over.
    certificate: Folder of a run, whose certificate is to be shown.
    sign: Ed25519 key (PEM) to sign that certificate with.
    verify: Public key (PEM) that its signature must be of.
    html: File for the certificate as HTML.
    markdown: File for the certificate as Markdown.
    ledger: That of dpmf train --ledger, which is to be shown.
    format: What --ledger is shown as: text.
    head: Hash of a row that --ledger must have: a head that was noted, to see
      that nothing was cut off since.
    set_budget: Another budget for --ledger from now on, or unlimited. One that
      is raised does not hold for runs that are chosen after seeing earlier
      ones.
    reason: Why --set_budget; it is kept.
    import_ledger: Ledger of an earlier version, a file of lines, to be made the
      new --ledger. It is renamed to *.imported; no run may be using it.
    sigma: gaussian_mf, sound: noise of the user gradient, instead of --epsilon.
    epsilon_per_release: laplace, randomized_response: epsilon of each release,
      instead of --epsilon.
    categories: randomized_response: how many answers there are.
    sampling_rate: subsampled_gaussian: chance to be in a sample.
    sampling: subsampled_gaussian: every record on its own (for add_remove), or
      a sample of fixed size (for replace).
  """

  scale: Sequence[str] = ('1', '5')
  delta: float = 1e-06
  table: Literal['steps', 'epsilon'] | None = None
  csv: str | None = None
  plot: str | None = None
  plot_by: Literal['steps', 'delta'] = 'steps'
  certificate: str | None = None
  sign: str | None = None
  verify: str | None = None
  html: str | None = None
  markdown: str | None = None
  ledger: str | None = None
  format: Literal['text', 'json', 'html'] | None = None
  head: str | None = None
  set_budget: str | None = None
  reason: str | None = None
  import_ledger: str | None = None
  sigma: float | None = None
  epsilon_per_release: float | None = None
  categories: int = 2
  sampling_rate: float | None = None
  sampling: Literal['poisson', 'without_replacement'] = 'poisson'


_FLAGS = declaring.define(_Declared)
_OF_LEDGERS = 'format', 'head', 'set_budget', 'reason', 'import_ledger'
_OF_CERTIFICATES = 'html', 'markdown', 'sign', 'verify'
_OF_ACCOUNTS = 'system', 'steps', 'epsilon', 'table', 'csv', 'plot'
# What a plain mechanism reads besides --steps, --delta, --epsilon, --relation.
_READS = {
  'gaussian': ('noise_multiplier',),
  'subsampled_gaussian': ('noise_multiplier', 'sampling_rate', 'sampling'),
  'laplace': ('noise_multiplier', 'epsilon_per_release'),
  'randomized_response': ('epsilon_per_release', 'categories'),
}
_OF_PLAIN = 'epsilon_per_release', 'categories', 'sampling_rate', 'sampling'

# What --help shows together, and what not every system reads.
GROUPS = {
  'system': ('system', 'plugin'),
  'privacy': (
    'variant', 'scale', 'epsilon', 'delta', 'relation', 'steps',
    'noise_multiplier', 'sigma', *_OF_PLAIN,
  ),
  'a run or a ledger instead': (
    'certificate', 'sign', 'verify', 'ledger', *_OF_LEDGERS,
  ),
  'output': ('table', 'csv', 'plot', 'plot_by', 'html', 'markdown'),
}  # fmt: skip
ONLY = {'sigma': ('gaussian_mf',)} | {
  name: [k for k, read in _READS.items() if name in read] for name in _OF_PLAIN
}


def system_answer(
  name: str, steps: int | None, epsilon: float | None
) -> Answer:
  """What a system of dpmf train would spend, from its plan."""
  given = {key: flag.value for key, flag in _SETTINGS.items()}
  given |= {'steps': steps, 'epsilon': epsilon}
  if _FLAGS.sigma is not None:
    given = _with_sigma(name, given)
  return accounts.planned(_chosen(name, given), _FLAGS.delta)


def _chosen(name: str, given: dict[str, Any]) -> Selected:
  return selection.selected(
    name,
    given,
    variant=_FLAGS.variant,
    delta=_FLAGS.delta if declaring.present('delta') else None,
    scale=cli.scale(_FLAGS.scale),
  )


def _with_sigma(name: str, given: dict[str, Any]) -> dict[str, Any]:
  """--sigma as the noise multiplier that it stands for."""
  sigma = cast(float, _FLAGS.sigma)
  if name != 'gaussian_mf' or _FLAGS.variant not in (None, 'sound'):
    raise ValueError('--sigma is for --system=gaussian_mf --variant=sound')
  if not sigma > 0:
    raise ValueError(
      f'--sigma must be > 0, got {sigma}: without noise there is no epsilon'
    )
  _one_of(given['epsilon'], 'sigma', 'noise_multiplier')
  # So much that its ends cost nothing; noise is proportional to it.
  one = _chosen(name, given | {'noise_multiplier': 1e3})
  noise = one.spec.plan(one.config).noise['user gradient']
  return given | {'noise_multiplier': 1e3 * (sigma / noise)}


def plain_answer(system: str, steps: int, epsilon: float | None) -> Answer:
  """What a plain mechanism spends, from the flags that it reads."""
  delta, relation = _FLAGS.delta, _SETTINGS['relation'].value
  read = (*_READS[system], 'steps', 'epsilon', 'relation')
  for name in (*_SETTINGS, *_OF_PLAIN, 'sigma', 'variant'):
    if declaring.present(name) and name not in read:
      raise ValueError(f'--{name} is not for --system={system}')
  if system == 'randomized_response' and relation == 'add_remove':
    raise ValueError(
      '--relation must be replace for --system=randomized_response, got '
      'add_remove: an answer is always there'
    )
  scales = ('noise_multiplier', 'epsilon_per_release')
  one = _one_of(epsilon, *(name for name in scales if name in read))
  if system == 'gaussian':
    return accounts.gaussian(steps, delta, *one, relation=relation)
  if system == 'subsampled_gaussian':
    return accounts.subsampled_gaussian(
      steps,
      delta,
      *one,
      relation=relation,
      sampling_rate=_given('sampling_rate'),
      sampling=_FLAGS.sampling,
    )
  if system == 'laplace':
    return accounts.laplace(steps, delta, *one, relation=relation)
  return accounts.randomized_response(
    steps, delta, *one, categories=_FLAGS.categories
  )


def main(_: Sequence[str]) -> None:
  if _FLAGS.certificate is not None:
    return show_certificate()
  if _FLAGS.ledger is not None:
    return show_ledger()
  _refuse('an account; it needs --ledger', *_OF_LEDGERS)
  _refuse('an account; it needs --certificate', *_OF_CERTIFICATES)
  system, table = _given('system'), _FLAGS.table
  plain = system in _PLAIN
  if plain:
    _given('steps')
  else:
    _refuse(f'--system={system}', *filter(declaring.present, _OF_PLAIN))
  steps = _numbers('steps', int) or [None]
  for count in steps:
    if count is not None and count < 1:
      raise ValueError(f'--steps must be >= 1, got {count}')
  if not 0 <= _FLAGS.delta <= 0.25:
    raise ValueError(f'--delta must be in (0, 1/4], got {_FLAGS.delta}')
  epsilons = _numbers('epsilon', float) or [None]
  for name, values in (('steps', steps), ('epsilon', epsilons)):
    if len(values) > 1 and table != name:
      raise ValueError(
        f'--{name}={",".join(_given(name))} has several values, which needs '
        f'--table={name}'
      )
  if table is None:
    _refuse('a single answer; it needs --table', 'csv')
  else:
    _given(table)
  if table == 'epsilon':
    _refuse('--table=epsilon; it is over steps', 'plot')
  answer_for = plain_answer if plain else system_answer
  answers = [
    answer_for(system, cast(Any, count), epsilon)
    for count in steps
    for epsilon in epsilons
  ]
  rows = [{'system': system} | answer.values for answer in answers]
  # allow_nan=False: an epsilon past the largest float is an error, not 'NaN'.
  lines = [json.dumps(row, allow_nan=False) for row in rows]
  if _FLAGS.plot is not None:
    longest = max(answers, key=lambda answer: answer.values['steps'])
    account_output.draw(_FLAGS.plot, _FLAGS.plot_by, system, longest)
  if table is not None:
    return account_output.show_table(table, rows, _FLAGS.csv)
  print(*lines)


def show_certificate() -> None:
  """Checks the certificate of a run, prints it, and writes other formats."""
  _refuse('--certificate', *_OF_ACCOUNTS, 'ledger', *_OF_LEDGERS)
  if declaring.present('delta'):
    raise ValueError('--delta is not for --certificate: it has its own')
  from dpmf_jax import certificates, files
  from dpmf_jax.certificates import rendering

  document = certificates.read(_FLAGS.certificate or '')
  _sign_or_verify(Path(_FLAGS.certificate or ''))
  lines = [rendering.text(document)]
  for path, render in (
    (_FLAGS.html, rendering.html),
    (_FLAGS.markdown, rendering.markdown),
  ):
    if path is not None:
      files.write_bytes(path, render(document).encode())
      lines.append(f'\nwritten to {path}')
  print('\n'.join(lines))


def _sign_or_verify(folder: Path) -> None:
  """What --sign and --verify ask for, of the certificate in a run's folder."""
  from dpmf_jax.certificates import signatures

  if (_FLAGS.sign or _FLAGS.verify) and not folder.is_dir():
    raise ValueError(f'--certificate={folder} must be a folder, to be signed')
  if _FLAGS.sign:
    print('signed: ', signatures.sign(folder, _FLAGS.sign), '\n', sep='')
  if _FLAGS.verify:
    signatures.verify(folder, _FLAGS.verify)
    print(f'the signature is of {_FLAGS.verify}\n')


def show_ledger() -> None:
  """Changes the ledger if that is asked for, and prints it."""
  _refuse('--ledger', *_OF_ACCOUNTS, *_OF_CERTIFICATES)
  from dpmf_jax.accounting import ledger
  from dpmf_jax.commands import ledgers

  where, budget = _given('ledger'), ledgers.budget('set_budget')
  if _FLAGS.import_ledger is not None:
    _refuse('--import_ledger', 'set_budget', 'reason', 'head')
    ledger.import_lines(_FLAGS.import_ledger, where)
  elif budget is not None:
    ledger.set_budget(where, budget, reason=_given('reason'))
  else:
    _refuse('--ledger; it needs --set_budget', 'reason')
  report = ledger.report(where, head=_FLAGS.head)
  print(ledgers.FORMATS[_FLAGS.format or 'text'](report))


def _numbers(name: str, kind: Callable[[str], Any]) -> list[Any]:
  """The numbers of a list flag; none if it was not given."""
  words = flags.FLAGS[name].value
  if words is None:
    return []
  try:
    numbers = [kind(word) for word in words]
  except ValueError:
    numbers = []
  if not numbers:
    what = 'whole numbers' if kind is int else 'numbers'
    raise ValueError(
      f'--{name}={",".join(words)} must be {what}, with commas between several'
    )
  return numbers


def _given(name: str) -> Any:
  value = flags.FLAGS[name].value
  if value is None:
    raise ValueError(f'--{name} must be given (see --help)')
  return value


def _one_of(epsilon: float | None, *others: str) -> tuple[str, float]:
  """The name and value of the only one that was given."""
  values = {'epsilon': epsilon}
  values |= {name: flags.FLAGS[name].value for name in others}
  given = [(k, value) for k, value in values.items() if value is not None]
  if len(given) == 1:
    return given[0]
  *names, last = (f'--{name}' for name in values)
  got = ' and '.join(f'--{name}' for name, _ in given) or 'none of them'
  raise ValueError(
    f'exactly one of {", ".join(names)} and {last} must be given, got {got}'
  )


def _refuse(variant: str, *unused: str) -> None:
  for name in unused:
    if flags.FLAGS[name].value is not None:
      raise ValueError(f'--{name} is not for {variant}')
