"""Users who collude or drop out: at the edge of what is stated, and beyond."""

import contextlib
import dataclasses
import functools
import io
import math
import random
import re
from fractions import Fraction
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from untrusted_reports import user_sums

from dpmf_jax import accounting
from dpmf_jax.auditing import bounds
from dpmf_jax.federated import masks, sums_protocol
from dpmf_jax.mechanisms import secure_sum, shares
from dpmf_jax.mechanisms.secure_sum import BrokenRoundError, MaskedReport
from dpmf_jax.plans.untrusted_pmf import (
  UntrustedPMFConfig,
  guarantee,
  rating_loss,
)
from dpmf_jax.systems.untrusted import sums


def sound(**settings):
  given = {'relation': 'add_remove', 'epsilon': 1.0, **settings}
  return UntrustedPMFConfig(variant='sound', scale=(1.0, 5.0), **given)


# The loss, against slow computations.


def law_of_fractions(unknown, needed, bits, reach):
  """P(noise = -reach .. reach) up to a factor, by a sum of exact fractions."""
  a, s = Fraction(2**bits - 1, 2**bits), Fraction(unknown, needed)
  law = [Fraction(1)]
  for g in range(40 * 2**bits):
    law.append(law[-1] * a * (g + s) / (g + 1))
  law = np.array([float(w) for w in law])
  shifted = lambda x: math.fsum(law[: len(law) - x] * law[x:])
  return np.array([shifted(abs(x)) for x in range(-reach, reach + 1)])


def law_of_fourier(unknown, needed, bits):
  """P(noise = 0 .. ) from its characteristic function."""
  a, size = 1 - 2.0**-bits, 2 ** (bits + 7)
  z = np.exp(2j * np.pi * np.arange(size) / size)
  power = 2 * unknown / needed
  return np.fft.ifft(((1 - a) / np.abs(1 - a * z)) ** power).real


@pytest.mark.parametrize(
  ('unknown', 'needed'), [(1, 2), (2, 3), (1, 5), (3, 3), (5, 3)]
)
def test_loss_is_the_largest_over_all_outcomes(unknown, needed):
  bits, moves, reach = 3, (3, 4), 40
  law = np.log(law_of_fractions(unknown, needed, bits, reach + max(moves)))
  middle = slice(max(moves), -max(moves))
  largest = 0.0
  for move in moves:
    largest += max(
      (law[middle] - np.roll(law, sign * move)[middle]).max()
      for sign in (-1, 1)
    )
  got = accounting.share_loss(moves, bits=bits, unknown=unknown, needed=needed)
  # With more shares than needed the sup is met far out only.
  slack = 1e-9 if unknown <= needed else 0.12
  assert got - slack <= largest <= got + 1e-9


@pytest.mark.parametrize(('unknown', 'needed'), [(3, 4), (707, 942), (1, 7)])
def test_loss_is_that_of_the_characteristic_function(unknown, needed):
  law = law_of_fourier(unknown, needed, 12)
  want = sum(np.log(law[0] / law[move]) for move in (1365, 2730))
  got = accounting.share_loss(
    (1365, -2730), bits=12, unknown=unknown, needed=needed
  )
  assert got == pytest.approx(want, abs=1e-8)


def test_loss_without_noise_is_infinite_and_wrong_counts_are_refused():
  assert accounting.share_loss((0, 0), bits=4, unknown=0, needed=1) == 0
  assert accounting.share_loss((0, 1), bits=4, unknown=0, needed=1) == math.inf
  assert accounting.share_loss((), bits=4, unknown=1, needed=2) == 0
  for wrong in ({'needed': 0}, {'bits': 0}, {'unknown': -1}):
    with pytest.raises(ValueError, match=next(iter(wrong))):
      accounting.share_loss(
        (1,), **{'bits': 4, 'unknown': 1, 'needed': 2, **wrong}
      )


def test_losses_in_the_documentation_are_what_its_commands_print():
  folder = Path(__file__).parents[2] / 'docs' / 'privacy'
  found = [
    shown
    for page in ('untrusted_pmf', 'deployment')
    for shown in re.findall(
      r'```\npython -c "\n(.*?)"\n```\n\n```\n(.*?)```',
      (folder / f'{page}.md').read_text(),
      re.DOTALL,
    )
  ]
  assert len(found) == 2
  for command, printed in found:
    with contextlib.redirect_stdout(io.StringIO()) as out:
      exec(command, {})
    assert out.getvalue() == printed


@pytest.mark.parametrize('count', [-400, 0, 3, 1365])
def test_a_single_item_is_published_as_0_where_its_sum_is(count):
  hyper = sums.hyper_of(sound(), 943)
  for label in (-2730, -1, 0, 1, 2730):
    item = sums.item_vectors(jnp.array([[count, label]]), hyper)
    assert np.sign(item[0, 0]) == np.sign(label)


# The edge.


@pytest.mark.parametrize('relation', ['add_remove', 'replace'])
@pytest.mark.parametrize('num_users', [4, 9, 943])
@pytest.mark.parametrize(('colluders', 'dropouts'), [(0, 0), (1, 0), (1, 2)])
def test_loss_is_as_stated_at_the_edge_and_more_beyond_it(
  relation, num_users, colluders, dropouts
):
  config = sound(relation=relation, colluders=colluders, dropouts=dropouts)
  stated = accounting.epsilon(guarantee(config), 0.0)
  loss = lambda known: rating_loss(config, num_users=num_users, known=known)
  for known in range(config.unneeded + 1):
    assert 0.999 * stated <= loss(known) <= stated <= 1
  assert loss(config.unneeded + 1) > 1
  rising = [loss(known) for known in (num_users // 2, num_users - 1, num_users)]
  assert rising == sorted(rising)
  assert rising[-1] == math.inf


# Five users, of whom two may collude and one drop out. Noise is coarse, so that
# single outcomes are seen often, and every item is one more repetition.
USERS, REPEATS = 5, 6_000
SMALL = {'colluders': 2, 'dropouts': 1, 'noise_bits': 2}


@pytest.fixture(scope='module')
def drawn():
  """Shares of noise of all users, as they draw them, from a fixed seed."""
  below = random.Random(0).randrange
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      shares,
      'polya_shares',
      functools.partial(shares.polya_shares, below=below),
    )
    config = sound(**SMALL)
    return [
      sums_protocol.client_share(config, USERS, REPEATS) for _ in range(USERS)
    ]


def seen(config, drawn, gone, known, rated):
  """What is left of sums [n, 2] once what colluders know is taken off.

  User 0 rated all items, or none, and nobody else rated any.
  """
  items = np.arange(REPEATS if rated else 0)
  own = user_sums(
    sums.feature_counts(np.ones((1, 1)))[0],
    items,
    np.full(len(items), 5.0, np.float32),
    REPEATS,
    sums.hyper_of(config, USERS),
  )
  counts = {user: own if user == 0 else 0 * own for user in range(USERS)}
  known_masks = {user: secure_sum.one_time_mask(own.shape) for user in counts}
  reports = [
    MaskedReport(
      0, user, masks.masked_words(counts[user], drawn[user], known_masks[user])
    )
    for user in sorted(set(counts) - set(gone))
  ]
  if len(gone) > config.dropouts:
    with pytest.raises(BrokenRoundError, match='nothing is passed on'):
      sums_protocol.aggregate(reports, config, round=0, users=counts)
    # A third party that passes it on all the same.
    config = dataclasses.replace(config, dropouts=len(gone))
  total = sums_protocol.aggregate(reports, config, round=0, users=counts)
  left = secure_sum.unmasked(total, known_masks, round=0)
  return left - sum(drawn[user] for user in known)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('gone', 'known', 'holds'),
  [
    ((4,), (2, 3), True),
    ((), (2, 3, 4), True),
    ((4,), (1, 2, 3), False),
    ((3, 4), (1, 2), False),
  ],
  ids=['edge', 'colluder for dropout', 'a colluder more', 'a dropout more'],
)
def test_simulated_loss_is_as_stated_at_the_edge_and_more_beyond_it(
  drawn, gone, known, holds
):
  config = sound(**SMALL)
  # The likeliest outcome without the rating.
  counts = [
    (seen(config, drawn, gone, known, rated) == 0).all(axis=1).sum()
    for rated in (False, True)
  ]
  lower, upper = (
    limit(counts, REPEATS, 1e-4)
    for limit in (bounds.binomial_lower, bounds.binomial_upper)
  )
  least, most = np.log(lower[0] / upper[1]), np.log(upper[0] / lower[1])
  exact = rating_loss(config, num_users=USERS, known=len(gone + known))
  # Wrong with a chance of 4e-4 at most, for a fixed seed.
  assert least <= exact <= most
  assert (exact <= config.epsilon) == (least <= config.epsilon) == holds
