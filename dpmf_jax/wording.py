"""The wording of a certificate, once, for every format.

It is written for a reader who decides about a release without being a
specialist, so it says what epsilon allows in odds and percentages, and what is
not promised. Every number that is shown is rounded to the weaker promise.
"""

from __future__ import annotations

import decimal
import json
import textwrap
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

_PRIORS = (0.01, 0.1, 0.5, 0.9)
# Above this an even suspicion may become 99.97%.
_WEAK = 8.0
_CONTEXT = decimal.Context(prec=60)


class Section(NamedTuple):
  """A heading and what is under it: paragraphs, then items, then a table."""

  title: str
  paragraphs: tuple[str, ...] = ()
  items: tuple[str, ...] = ()
  rows: tuple[tuple[str, str], ...] = ()
  header: tuple[str, str] | None = None


class Notice(NamedTuple):
  """What a reader must see first; `kind` is its colour where there is one."""

  kind: str  # proved, weak, claimed, none or experiment
  title: str
  words: str


# Arithmetic


def posterior(epsilon: float, prior: float) -> decimal.Decimal:
  """The most that a belief `prior` can become: prior odds times e^epsilon.

  Reference: with prior odds p/(1-p), the posterior odds are at most
  e^epsilon p/(1-p) (Dwork and Roth 2014, section 2.3.2).
  """
  with decimal.localcontext(_CONTEXT):
    chance = decimal.Decimal(repr(prior))
    against = (1 - chance) / chance * (-decimal.Decimal(epsilon)).exp()
    return 1 / (1 + against)


def group(
  epsilon: float, delta: float, size: int
) -> tuple[decimal.Decimal, decimal.Decimal]:
  """The (epsilon, delta) of `size` changes at once; delta is at most 1.

  Reference: Vadhan (2017), Lemma 2.2: size epsilon, and delta times
  1 + e^epsilon + ... + e^((size - 1) epsilon).
  """
  with decimal.localcontext(_CONTEXT):
    each, chance = decimal.Decimal(epsilon), decimal.Decimal(repr(delta))
    if size * each > 1e6:  # past what exp can hold, and past any use
      return size * each, decimal.Decimal(1 if delta else 0)
    chance *= sum((k * each).exp() for k in range(size))
    return size * each, min(chance, decimal.Decimal(1))


def factor_words(epsilon: float | decimal.Decimal) -> str:
  """e^epsilon, rounded up to three figures (near 1, of what is above 1)."""
  with decimal.localcontext(_CONTEXT):
    exponent = decimal.Decimal(epsilon)
    if exponent > 20:
      return f'10^{_rounded(exponent / decimal.Decimal(10).ln(), 3)}'
    if exponent > 1:
      return _rounded(exponent.exp(), 3)
    if exponent == 0:
      return '1'
    above = max(exponent.exp() - 1, decimal.Decimal('1e-6'))
    above = decimal.Decimal(_rounded(above, 3))
    return _trimmed(1 + above)


def percent_words(chance: decimal.Decimal) -> str:
  """A chance in percent, rounded up; near 100% with more digits."""
  with decimal.localcontext(_CONTEXT):
    rest = 100 * (1 - chance)
    if rest < decimal.Decimal('1e-6'):
      return 'practically 100%'
    digits = max(1, 1 - rest.adjusted())
    step = decimal.Decimal(1).scaleb(-digits)
    shown = (100 * chance).quantize(step, decimal.ROUND_CEILING)
  return f'{_trimmed(shown)}%'


def chance_words(chance: float | decimal.Decimal) -> str:
  """A small chance as 'one in a million', rounded to the larger chance."""
  with decimal.localcontext(_CONTEXT):
    chance = decimal.Decimal(str(chance))
    if chance > decimal.Decimal('0.1'):
      return percent_words(chance)
    count = 1 / chance
  words = {10**3: 'a thousand', 10**6: 'a million', 10**9: 'a billion'}
  if count in words:
    return f'one in {words[int(count)]}'
  if count.adjusted() >= 12:
    return f'one in 10^{count.adjusted()}'
  return f'one in {_rounded(count, 3, decimal.ROUND_FLOOR)}'


def epsilon_words(epsilon: float) -> str:
  """epsilon to four figures, rounded up."""
  return _rounded(decimal.Decimal(repr(epsilon)), 4)


# Wording

_PROTECTED = {
  ('rating', 'replace'): 'the value of any one rating (who rated what is '
  'public)',
  ('rating', 'add_remove'): 'any one rating, its value and that it exists',
  ('user', 'replace'): 'all ratings of any one user, as values',
  ('user', 'add_remove'): 'any one user with all ratings',
}
_QUESTION = {
  ('rating', 'replace'): 'what value a certain rating has',
  ('rating', 'add_remove'): 'whether a certain rating exists',
  ('user', 'replace'): 'what values the ratings of a certain person have',
  ('user', 'add_remove'): 'whether a certain person is in the data',
}
_SUSPICION = {
  ('rating', 'replace'): 'that a rating is high',
  ('rating', 'add_remove'): 'that a rating exists',
  ('user', 'replace'): 'that a person rates horror films highly',
  ('user', 'add_remove'): 'that a person is in the data',
}
_OTHERS = (
  "What follows about a person from other people's ratings or from general "
  'patterns: it would be learned without that person, too.'
)
_CLAIMED = 'CLAIMED BY THE PAPER, NOT A GUARANTEE'
_EXPERIMENT = Notice(
  'experiment',
  'FOR EXPERIMENTS ONLY',
  'The run had a fixed seed. Whoever knows or guesses the seed can remove the '
  'noise, and with it all protection. Do not release this model.',
)


def title(certificate: Mapping[str, Any]) -> str:
  """What the certificate is of: the system, and the data set if named."""
  dataset = certificate['parameters'].get('dataset')
  name = certificate['system']
  return _clean(f'{name} on {dataset}' if dataset else name)


def notices(certificate: Mapping[str, Any]) -> list[Notice]:
  """The standing of the certificate, after a warning if the seed was fixed."""
  status = certificate['status']
  if status == 'none':
    return [
      Notice(
        'none',
        'NOT PRIVATE',
        'There is no guarantee of any kind. Ratings may be worked out from '
        'what is released. Treat the model like the ratings themselves.',
      )
    ]
  secret = certificate['randomness']['valid_for_release']
  warning = [] if secret else [_EXPERIMENT]
  if status == 'claimed':
    words = (
      f'A paper claims {_amount(certificate)} for this method. That is its own '
      'formula and is not proved for what was run; the reasons are under '
      '"What this rests on". Treat the model as not private.'
    )
    return [*warning, Notice('claimed', _CLAIMED, words)]
  words = f'{_amount(certificate)}: proved for the code as it runs, under the '
  words += 'assumptions below.'
  if secret and certificate['epsilon'] > _WEAK:
    words = f'{words} The bound is too weak to rely on.'
    return [Notice('weak', 'PROVED, BUT WEAK', words)]
  if secret:
    return [Notice('proved', 'PROVED', words)]
  words = f'{words} This run did not have a secret key.'
  return [
    *warning,
    Notice('experiment', 'PROVED ONLY WITH A SECRET KEY', words),
  ]


def summary(certificate: Mapping[str, Any]) -> str:
  """The certificate in a few lines for a terminal."""
  if certificate['status'] == 'none':
    lines = ['Guarantee: NONE. This model is not private.']
  else:
    word = 'proved' if certificate['status'] == 'proved' else _CLAIMED
    what = _PROTECTED[certificate['unit'], certificate['relation']]
    source = certificate['randomness']
    lines = [
      f'Guarantee ({word}): {_amount(certificate)}',
      f'  protects   {what}',
      f'  against    {certificate["adversary"]}',
      f'  released   {", ".join(certificate["released"])}',
      f'  secret     {", ".join(certificate["secret"])}',
      f'  randomness {source["source"]}; {source["note"]}',
    ]
  return '\n'.join(_wrapped(_visible(line)) for line in lines)


def _wrapped(line: str) -> str:
  """`line` in at most 80 columns, going on under its second word."""
  return textwrap.fill(line, 80, subsequent_indent=13 * ' ')


def sections(certificate: Mapping[str, Any]) -> list[Section]:
  """The certificate in words, in the order in which it should be read."""
  found = [
    *_promise(certificate),
    _not_protected(certificate),
    Section('What is released', items=tuple(certificate['released'])),
    Section(
      'What must stay secret',
      items=tuple(certificate['secret']) or ('not stated',),
    ),
    Section(
      'What this rests on',
      items=tuple(certificate['assumptions']) or ('not stated',),
    ),
    _method(certificate),
    Section(
      'Settings',
      rows=tuple(
        (name, _value(value))
        for name, value in certificate['parameters'].items()
      ),
    ),
    Section('Versions', rows=tuple(certificate['versions'].items())),
  ]
  return [_cleaned(section) for section in found]


def _promise(certificate: Mapping[str, Any]) -> list[Section]:
  """What is protected, against whom and how strongly."""
  kind = certificate['unit'], certificate['relation']
  against = (_sentence(certificate['adversary']),)
  if certificate['status'] == 'none':
    return [
      Section('What is protected', ('Nothing.',)),
      Section('Against whom', against),
      Section('How strongly', ('Not at all: epsilon has no bound.',)),
    ]
  claimed = certificate['status'] == 'claimed'
  what = _PROTECTED[kind]
  if claimed:
    what = f'Nothing is guaranteed. The paper claims to protect {what}'
  return [
    Section('What is protected', (_sentence(what),)),
    Section('Against whom', against),
    _strength(certificate, claimed),
  ]


def _strength(certificate: Mapping[str, Any], claimed: bool) -> Section:
  """What epsilon and delta allow.

  (epsilon, delta) is not 'within e^epsilon but for a chance of delta': the
  odds may move further a little more often than that. What does hold is that
  the release is no more telling than a game that shows the truth with chance
  delta and else keeps to e^epsilon (Kairouz, Oh and Viswanath 2015), and the
  words below say that.
  """
  epsilon, delta = certificate['epsilon'], certificate['delta']
  kind = certificate['unit'], certificate['relation']
  would, factor = ('would tell' if claimed else 'tells'), factor_words(epsilon)
  odds = (
    f'the odds of any suspicion change by at most a factor of {factor} (e to '
    'the power of epsilon)'
  )
  if epsilon == 0:
    odds = 'nothing is learned'
  lead = 'If the claim were true, what' if claimed else 'What'
  lead += f' is released {would} nobody more about {_QUESTION[kind]} than '
  if delta > 0:
    lead += (
      f'this: with a chance of {chance_words(delta)} (delta) it is shown '
      f'outright; otherwise {odds}.'
    )
  else:
    lead += f'this: {odds}.'
  paragraphs = ['Not at all, as far as is proved.'] if claimed else []
  paragraphs.append(lead)
  if delta >= 1e-4:
    one_in = 1 / decimal.Decimal(repr(delta))
    paragraphs.append(
      f'That chance is for each {certificate["unit"]} on its own and is not '
      f'small: of {_rounded(one_in, 2, decimal.ROUND_FLOOR)}, about one '
      'might be shown outright.'
    )
  # A randomized response covers a record that changes from anything to
  # anything; for others it is out with the one value, in with the other.
  any_change = certificate['event'].startswith('RandomizedResponse(')
  if certificate['relation'] == 'add_remove' and epsilon > 0 and not any_change:
    paragraphs.append(
      f'Where it is known that the {certificate["unit"]} is there, guesses '
      f'about values get less protection: {_group_words(certificate, 2)}.'
    )
  paragraphs.append(_strength_words(epsilon, claimed))
  rows = tuple(
    (f'{prior:.0%}', percent_words(posterior(epsilon, prior)))
    for prior in _PRIORS
  )
  after = 'can become at most' if not claimed else 'claimed to become at most'
  if delta > 0:
    after += ' (unless shown outright)'
  return Section(
    'How strongly',
    tuple(paragraphs),
    rows=rows,
    header=(f'A suspicion (say, {_SUSPICION[kind]}) of', after),
  )


def _group_words(certificate: Mapping[str, Any], size: int) -> str:
  epsilon, delta = certificate['epsilon'], certificate['delta']
  epsilon, delta = group(epsilon, delta, size)
  words = f'a factor of {factor_words(epsilon)}'
  if delta == 0:
    return words
  return f'{words}, and a chance of {chance_words(delta)} of being shown'


def _strength_words(epsilon: float, claimed: bool) -> str:
  """How strong that is. The words are a reading; the factor is the fact."""
  if epsilon <= 1:
    words = 'a strong bound: a suspicion stays about what it was'
  elif epsilon <= 3:
    words = 'a moderate bound: a suspicion can grow, but not to certainty'
  elif epsilon <= _WEAK:
    words = (
      'a weak bound: it does not stop somebody who suspects something from '
      'becoming almost sure'
    )
  else:
    words = (
      'so weak a bound that it rules out hardly anything: on its own it does '
      'not protect, and a smaller epsilon is needed'
    )
  return f'{"That would be" if claimed else "This is"} {words}.'


def _not_protected(certificate: Mapping[str, Any]) -> Section:
  """What nobody should read into the certificate."""
  items = []
  status = certificate['status']
  if status == 'none':
    items.append('Every rating of every user.')
  if status == 'claimed':
    items.append('Anything: what the paper claims is not a guarantee.')
  if status != 'none' and certificate['relation'] == 'replace':
    items.append('Who rated what: it is taken to be public.')
  if status == 'proved':
    if certificate['unit'] == 'rating':
      items.append(
        'All ratings of one person together. For ten of them the bound is only '
        f'{_group_words(certificate, 10)}.'
      )
    items.append(_OTHERS)
  items += map(_sentence, certificate['not_covered'])
  return Section('What is not protected', items=tuple(items))


def _method(certificate: Mapping[str, Any]) -> Section:
  """How it was done and accounted for."""
  source = certificate['randomness']
  return Section(
    'How it was done',
    rows=(
      ('mechanism', certificate['mechanism']),
      ('accountant', certificate['accountant']),
      ('event', certificate['event']),
      (
        'randomness',
        f'{source["source"]} ({source["generator"]}); {source["note"]}',
      ),
      (
        'stated for',
        f'unit {certificate["unit"]}, relation {certificate["relation"]}',
      ),
      ('schema', certificate['schema']),
    ),
  )


def _amount(certificate: Mapping[str, Any]) -> str:
  delta = decimal.Decimal(repr(certificate['delta']))
  return (
    f'epsilon = {epsilon_words(certificate["epsilon"])}, delta = '
    f'{_rounded(delta, 3)}'
  )


# Strings


def _cleaned(section: Section) -> Section:
  return section._replace(
    paragraphs=tuple(map(_clean, section.paragraphs)),
    items=tuple(map(_clean, section.items)),
    rows=tuple((_clean(a), _clean(b)) for a, b in section.rows),
  )


def _clean(words: str) -> str:
  """`words` on one line, without what could forge a line or move a cursor."""
  return _visible(' '.join(words.split()))


def _visible(words: str) -> str:
  # Control characters, lone surrogates and marks that turn text around.
  return ''.join(
    '\ufffd'
    if unicodedata.category(c) in ('Cc', 'Cs')
    or '\u202a' <= c <= '\u202e'
    or '\u2066' <= c <= '\u2069'
    else c
    for c in words
  )


def _sentence(words: str) -> str:
  """`words` with a capital and a full stop, unless it starts with a name."""
  first = words.split()[0]
  if first.rstrip(':,;').isalpha():
    words = words.replace(first, first[:1].upper() + first[1:], 1)
  return words if words.endswith('.') else f'{words}.'


def _value(value: Any) -> str:
  """A setting as a person would write it."""
  if value is None:
    return 'not set'
  return value if isinstance(value, str) else json.dumps(value)


def _rounded(
  value: decimal.Decimal,
  figures: int,
  rounding: str = decimal.ROUND_CEILING,
) -> str:
  """`value` to so many figures, in digits where they are few enough."""
  with decimal.localcontext(_CONTEXT) as context:
    context.prec, context.rounding = figures, rounding
    value = +value
  if value == 0:
    return '0'
  if not -4 <= value.adjusted() < 12:
    mantissa = _trimmed(value.scaleb(-value.adjusted()))
    return f'{mantissa}e{value.adjusted()}'
  return _trimmed(value)


def _trimmed(value: decimal.Decimal) -> str:
  digits = f'{value:,f}'
  return digits.rstrip('0').rstrip('.') if '.' in digits else digits
