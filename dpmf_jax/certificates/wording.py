"""The wording of a certificate, once, for every format.

It is written for a reader who decides about a release without being a
specialist, so it says what epsilon allows in odds and percentages, and what is
not promised. Numbers are those of `numbers`, rounded to the weaker promise.
"""

from __future__ import annotations

import decimal
import json
import textwrap
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

from dpmf_jax.certificates.numbers import (
  chance_words,
  epsilon_words,
  factor_words,
  percent_words,
  posterior,
  rounded,
)

_PRIORS = (0.01, 0.1, 0.5, 0.9)
# Above this an even suspicion may become 99.97%.
_WEAK = 8.0


class Section(NamedTuple):
  """A heading and what is under it: paragraphs, then items, then a table."""

  title: str
  paragraphs: tuple[str, ...] = ()
  items: tuple[str, ...] = ()
  rows: tuple[tuple[str, str], ...] = ()
  header: tuple[str, str] | None = None


class Notice(NamedTuple):
  """What a reader must see first; `kind` is its colour where there is one."""

  kind: str  # proved, weak, stated, claimed, none or experiment
  title: str
  words: str


# Wording

_PROTECTED = {
  ('rating', 'replace'): 'the value of any one rating (who rated what is '
  'public)',
  ('rating', 'add_remove'): 'any one rating, its value and that it exists',
  ('user', 'replace'): 'all ratings of any one user, as values',
  ('user', 'add_remove'): 'any one user with all ratings',
}
# How a list of ids came about, in a certificate's `lists`.
PUBLIC = 'public'
COUNTED = 'from the ratings'
SECRET = 'secret'
SECRET_COUNTED = f'secret, but their number is {COUNTED}'

# Of a run that public ratings were given to.
PUBLIC_RATINGS = (
  'The public ratings (public_ratings, by their SHA-256) are the same whatever '
  'the private ratings are: they were not taken from these, nor chosen by '
  'looking at them.'
)
ITEM_FEATURES = (
  'The features of items (item_features, by their SHA-256) are the same '
  'whatever the ratings are: they were not computed from these, nor chosen by '
  'looking at them.'
)
UNPROTECTED = (
  'the public ratings that items start from: they are not protected, and '
  'released items tell of them; where a person may be in them and in the '
  'private ratings, what that tells is for the curator to judge'
)

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
_STANDING = {
  'proved': 'proved',
  'stated': 'STATED BY ITS AUTHOR, NOT CHECKED HERE',
  'claimed': 'CLAIMED BY THE PAPER, NOT A GUARANTEE',
}
_NOT_CHECKED = {
  'stated': 'Whoever wrote this system states {amount} for it. This library '
  'has not proved that; judge its author and the reasons under "What this '
  'rests on".',
  'claimed': 'A paper claims {amount} for this method. That is its own formula '
  'and is not proved for what was run; the reasons are under "What this rests '
  'on". Treat the model as not private.',
}
_SAID = {
  'stated': 'Its author states that it protects',
  'claimed': 'The paper claims to protect',
}
_KEYS = {
  'fixed seed': 'The run had a fixed seed. Whoever knows or guesses the seed',
  'given by the caller': 'The key of the run was given by whoever started it, '
  'and how it was drawn is not known. Whoever knows or guesses it',
}


def title(certificate: Mapping[str, Any]) -> str:
  """What the certificate is of: the system, and the data set if named."""
  dataset = certificate['parameters'].get('dataset')
  name = certificate['system']
  return _clean(f'{name} on {dataset}' if dataset else name)


def notices(certificate: Mapping[str, Any]) -> list[Notice]:
  """The standing of the certificate, after a warning about its key if any."""
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
  warning = [] if secret else [_experiment(certificate)]
  if status != 'proved':
    words = _NOT_CHECKED[status].format(amount=_amount(certificate))
    return [*warning, Notice(status, _STANDING[status], words)]
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


def _experiment(certificate: Mapping[str, Any]) -> Notice:
  """The warning of a run whose key is not known to be secret."""
  words = (
    f'{_KEYS[certificate["randomness"]["source"]]} can remove the noise, and '
    'with it all protection. Do not release this model.'
  )
  return Notice('experiment', 'FOR EXPERIMENTS ONLY', words)


def summary(certificate: Mapping[str, Any]) -> str:
  """The certificate in a few lines for a terminal."""
  if certificate['status'] == 'none':
    lines = ['Guarantee: NONE. This model is not private.']
  else:
    word = _STANDING[certificate['status']]
    what = _protected(certificate)
    source = certificate['randomness']
    lines = [
      f'Guarantee ({word}): {_amount(certificate)}',
      f'  protects   {what}',
      f'  against    {certificate["adversary"]}',
      f'  released   {", ".join(certificate["released"])}',
      f'  secret     {", ".join(certificate["secret"])}',
      f'  randomness {source["source"]}; {source["note"]}',
    ]
    if 'personal' in certificate:
      shown = _own_range(certificate['personal'])
      lines.insert(2, f'  personal   each rating has its own epsilon{shown}')
  return '\n'.join(_wrapped(_visible(line)) for line in lines)


def _wrapped(line: str) -> str:
  """`line` in at most 80 columns, going on under its second word."""
  return textwrap.fill(line, 80, subsequent_indent=13 * ' ')


def sections(certificate: Mapping[str, Any]) -> list[Section]:
  """The certificate in words, in the order in which it should be read."""
  found = [
    *_promise(certificate),
    *_own(certificate),
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
  against = (_sentence(certificate['adversary']),)
  if certificate['status'] == 'none':
    return [
      Section('What is protected', ('Nothing.',)),
      Section('Against whom', against),
      Section('How strongly', ('Not at all: epsilon has no bound.',)),
    ]
  claimed = certificate['status'] != 'proved'
  what = _protected(certificate)
  if claimed:
    what = f'Nothing is guaranteed. {_SAID[certificate["status"]]} {what}'
  return [
    Section('What is protected', (_sentence(what),)),
    Section('Against whom', against),
    _strength(certificate, claimed),
  ]


def _protected(certificate: Mapping[str, Any]) -> str:
  """What is protected, and what the lists of ids tell all the same."""
  what = _PROTECTED[certificate['unit'], certificate['relation']]
  shown = _shown_by_lists(certificate)
  if not shown:
    return what
  return f'{what}, except {shown} (taken from the ratings)'


def _shown_by_lists(certificate: Mapping[str, Any]) -> str:
  """What lists tell that were taken from the ratings; '' if nothing."""
  if certificate['relation'] == 'replace':
    return ''  # who rated what is public
  lists = certificate.get('lists', {})
  users, items = (lists.get(role, COUNTED) for role in ('users', 'items'))
  listed = [
    f'every {role}'
    for role, standing in (('user', users), ('item', items))
    if standing == COUNTED
  ]
  shown = []
  if listed:
    shown.append(f'that {" and ".join(listed)} in ids.json has a rating')
  if users == SECRET_COUNTED:
    shown.insert(0, 'how many users there are')
  return ' and '.join(shown)


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
      f'small: of {rounded(one_in, 2, decimal.ROUND_FLOOR)}, about one '
      'might be shown outright.'
    )
  # A randomized response covers a record that changes from anything to
  # anything; for others it is out with the one value, in with the other.
  any_change = 'RandomizedResponse' in certificate['event']
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


def _own(certificate: Mapping[str, Any]) -> list[Section]:
  """What is said of ratings that have an epsilon of their own, if they do."""
  personal = certificate.get('personal')
  if personal is None:
    return []
  lead = (
    'The epsilon above is the worst case, of a rating that asks for the most. '
    + personal['note']
  )
  rows, found = (), personal['distribution']
  if found is not None:
    lead += f' Of {found["of"]}:'
    quarter, half, three = found['quartiles']
    names = {
      'the least epsilon is': found['least'],
      'a quarter has at most': quarter,
      'half have at most': half,
      'three quarters have at most': three,
      'the largest epsilon is': found['largest'],
      'the mean is': found['mean'],
    }
    rows = tuple((name, epsilon_words(x)) for name, x in names.items())
  return [Section('Epsilon of each rating', (lead,), rows=rows)]


def _own_range(personal: Mapping[str, Any]) -> str:
  if (found := personal['distribution']) is None:
    return f', at most {epsilon_words(personal["threshold"])}'
  least, half, largest = (
    epsilon_words(x)
    for x in (found['least'], found['quartiles'][1], found['largest'])
  )
  return f': {least} to {largest}, half of {found["of"]} at most {half}'


def _group_words(certificate: Mapping[str, Any], size: int) -> str:
  """What is left for so many at once."""
  found = [part for part in certificate['groups'] if part['size'] == size]
  if not found or found[0]['delta'] == 1:
    return 'no bound'
  epsilon, delta = found[0]['epsilon'], found[0]['delta']
  words = f'epsilon = {epsilon_words(epsilon)}, a factor of '
  words += factor_words(epsilon)
  if delta == 0:
    return words
  return f'{words}, and a chance of {chance_words(delta)} of being shown'


def _strength_words(epsilon: float, claimed: bool) -> str:
  """How strong that is. The words are a reading; the factor is the fact."""
  if epsilon <= 1:
    words = 'a strong bound: what was uncertain stays uncertain'
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
  if status == 'stated':
    items.append('Anything, as far as this library knows.')
  if status != 'none' and certificate['relation'] == 'replace':
    items.append('Who rated what: it is taken to be public.')
  shown = _shown_by_lists(certificate)
  if status == 'proved' and shown:
    items.append(
      f'{shown[:1].upper()}{shown[1:]}: this was taken from the ratings. Lists '
      'that were made without looking at them (--item_ids, and --user_ids or '
      '--num_users) would protect it.'
    )
  if status == 'proved':
    if certificate['unit'] == 'rating':
      items.append(
        'All ratings of one person together. For ten of them this is left: '
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
      ('event', _value(certificate['event'])),
      (
        'randomness',
        f'{source["source"]} ({source["generator"]}); {source["note"]}',
      ),
      (
        'stated for',
        f'unit {certificate["unit"]}, relation {certificate["relation"]}',
      ),
      ('run', f'{certificate["run"]}, certified {certificate["date"]}'),
      ('schema', certificate['schema']),
    ),
  )


def _amount(certificate: Mapping[str, Any]) -> str:
  delta = decimal.Decimal(repr(certificate['delta']))
  return (
    f'epsilon = {epsilon_words(certificate["epsilon"])}, delta = '
    f'{rounded(delta, 3)}'
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
