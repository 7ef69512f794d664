"""Sums on the ring: exact, masked, repaired or refused; shares of noise."""

import importlib.util
import math
import random
import subprocess
import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax.accounting.shares import largest_move, move_epsilon
from dpmf_jax.mechanisms import secure_sum, shares
from dpmf_jax.mechanisms.secure_sum import BrokenRoundError, MaskedReport

needs_cryptography = pytest.mark.skipif(
  importlib.util.find_spec('cryptography') is None,
  reason='the package cryptography is not installed',
)


def reports(words, round=3):
  """Masked reports of senders 10, 11, .. and their masks."""
  masks = {
    10 + who: secure_sum.one_time_mask(part.shape)
    for who, part in enumerate(words)
  }
  made = [
    MaskedReport(round, who, secure_sum.masked(part, masks[who]))
    for who, part in zip(masks, words, strict=True)
  ]
  return made, masks


# The ring.


@settings(max_examples=60)
@given(
  st.lists(
    st.lists(st.integers(-(2**40), 2**40), min_size=3, max_size=3),
    min_size=1,
    max_size=9,
  )
)
def test_sums_under_masks_are_those_of_python_integers(rows):
  words = [secure_sum.on_ring(np.array(row)) for row in rows]
  made, masks = reports(words)
  total = secure_sum.aggregate(made, round=3, expected=masks)
  got = secure_sum.unmasked(total, masks, round=3)
  for place, value in enumerate(got):
    want = sum(row[place] for row in rows)
    assert (int(value) - want) % secure_sum.MODULUS == 0
    assert -(2**31) <= value < 2**31


@settings(max_examples=60)
@given(
  st.integers(1, 2000),
  st.floats(1e-3, 1e4),
  st.floats(0, 1e4),
)
def test_fraction_bits_are_the_most_that_never_wrap(parties, bound, spread):
  bits = secure_sum.fraction_bits(parties, bound, spread)
  reach = Fraction(bound) * parties + Fraction(spread)
  assert reach * 2**bits + Fraction(parties, 2) < 2**31
  assert reach * 2 ** (bits + 1) + Fraction(parties, 2) >= 2**31 - 2
  # All parties at the bound: the sum is what it should be.
  one = secure_sum.encode(np.array([bound]), bits, bound)
  total = secure_sum.ring_sum([one] * parties)
  error = abs(secure_sum.decode(total, bits)[0] - parties * bound)
  assert error <= parties * 2.0 ** -(bits + 1) * (1 + 1e-9)


def test_headroom_is_refused_before_anything_wraps():
  secure_sum.check_headroom(1, 2**31 - 1)
  for asked in ((1, 2**31), (2, 2**30), (3, 1, 2**31 - 3), (-1, 1)):
    with pytest.raises(ValueError, match='would wrap'):
      secure_sum.check_headroom(*asked)
  with pytest.raises(ValueError, match='32 bits'):
    secure_sum.fraction_bits(10**6, 1e4)
  with pytest.raises(ValueError, match='32 bits'):
    secure_sum.encode(np.zeros(2), 31, 1.0)
  with pytest.raises(ValueError, match='NaN'):
    secure_sum.encode(np.array([np.nan]), 8, 1.0)
  np.testing.assert_array_equal(
    secure_sum.decode(secure_sum.encode([np.inf, -9.0, 0.3], 2, 4.0), 2),
    [4.0, -4.0, 0.25],
  )
  with pytest.raises(ValueError, match='uint32'):
    secure_sum.ring_sum([np.zeros(2, np.int64)])


# Masks.


@pytest.mark.parametrize(
  'source', ['one_time', pytest.param('seed', marks=needs_cryptography)]
)
def test_masks_are_uniform_and_their_own_each_time(source):
  if source == 'one_time':
    first, second = (secure_sum.one_time_mask((20_000,)) for _ in range(2))
  else:
    seed = secure_sum.new_seed()
    first, second = (
      secure_sum.seed_mask(seed, (20_000,), round=r, sender=1) for r in (1, 2)
    )
    again = secure_sum.seed_mask(seed, (20_000,), round=1, sender=1)
    np.testing.assert_array_equal(first, again)
    other = secure_sum.seed_mask(seed, (20_000,), round=1, sender=2)
    assert (other == first).mean() < 0.01
  assert (first == second).mean() < 0.01
  # The seeds are fresh: each of these fails by chance once in 1e6.
  for words in (first, second, first - second):
    high = np.bincount(words >> 24, minlength=256)
    low = np.bincount(words & 255, minlength=256)
    assert scipy.stats.chisquare(high).pvalue > 1e-6
    assert scipy.stats.chisquare(low).pvalue > 1e-6


@needs_cryptography
def test_seed_masks_are_the_stream_of_rfc_8439():
  # Appendix A.1, test vector 1: key and nonce of zeros, counter 0.
  words = secure_sum.seed_mask(bytes(32), (4,), round=0, sender=0)
  assert words.astype('<u4').tobytes().hex() == (
    '76b8e0ada0f13d90405d6ae55386bd28'
  )
  with pytest.raises(ValueError, match='32 bytes'):
    secure_sum.seed_mask(b'short', (4,), round=0, sender=0)


def test_without_cryptography_the_message_says_what_to_do():
  code = (
    'import sys; sys.modules["cryptography"] = None\n'
    'from dpmf_jax.mechanisms import secure_sum\n'
    'try: secure_sum.seed_mask(bytes(32), (4,), round=0, sender=0)\n'
    'except ImportError as error: print(error)\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], check=True, capture_output=True, text=True
  )
  assert 'dpmf_jax[secure]' in done.stdout


def test_pieces_add_up_and_are_uniform_one_by_one():
  total = np.array([5, 2**32 - 7], np.uint32)
  made = np.stack([secure_sum.pieces(total, 3) for _ in range(4000)])
  np.testing.assert_array_equal(
    made.sum(axis=1, dtype=np.uint32), np.tile(total, (4000, 1))
  )
  for piece in range(3):
    # Fails by chance once in 1e6.
    drawn = made[:, piece].ravel() / 2**32
    assert scipy.stats.kstest(drawn, 'uniform').pvalue > 1e-6
  np.testing.assert_array_equal(secure_sum.pieces(total, 1)[0], total)


# Dropout.


def test_a_broken_round_is_never_summed():
  words = [np.array([who, 7], np.uint32) for who in range(4)]
  made, masks = reports(words)
  whole = {'round': 3, 'expected': masks}
  for broken, why in (
    (made[:3], '3 of 4'),
    ([*made, made[1]], 'two reports'),
    ([*made[:3], made[3]._replace(round=2)], 'of round 2'),
    ([*made[:3], made[3]._replace(sender=99)], 'nobody expects'),
    ([*made[:3], made[3]._replace(values=np.zeros(3, np.uint32))], 'shape'),
  ):
    with pytest.raises(BrokenRoundError, match=why):
      secure_sum.aggregate(broken, **whole)
  # Not even where enough have arrived.
  with pytest.raises(BrokenRoundError, match='two reports'):
    secure_sum.aggregate([*made[:3], made[1]], **whole, least=2)


def test_masks_of_those_who_did_not_arrive_stay_on():
  words = [np.array([who, 7 * who], np.uint32) for who in range(5)]
  made, masks = reports(words)
  arrived = [made[who] for who in (4, 0, 2)]
  total = secure_sum.aggregate(arrived, round=3, expected=masks, least=3)
  assert total.arrived == (10, 12, 14)
  got = secure_sum.unmasked(total, masks, round=3)
  np.testing.assert_array_equal(got, [6, 42])
  # Taking all masks off, as the paper would, leaves garbage.
  garbage = total.values - secure_sum.ring_sum(masks.values())
  assert (np.abs(secure_sum.signed(garbage)) > 10**4).any()
  for broken, why in (
    (total._replace(round=4), 'of round 4'),
    (total._replace(arrived=(10, 10, 12)), 'each once'),
    (total._replace(arrived=()), 'each once'),
    (total._replace(arrived=(10, 12, 99)), 'no mask'),
    (total._replace(values=np.zeros(3, np.uint32)), 'shape'),
  ):
    with pytest.raises(BrokenRoundError, match=why):
      secure_sum.unmasked(broken, masks, round=3)


def test_reports_about_some_rows_are_summed_by_row():
  rows = {0: np.array([2, 0]), 1: np.array([2]), 2: np.array([1, 2])}
  words = {who: np.full((len(at), 2), who + 1, np.uint32)
           for who, at in rows.items()}  # fmt: skip
  masks = {who: secure_sum.one_time_mask(w.shape) for who, w in words.items()}
  made = [
    MaskedReport(0, who, secure_sum.masked(w, masks[who]))
    for who, w in words.items()
  ]
  total = secure_sum.aggregate(
    made, round=0, expected=rows, rows=rows, num_rows=4
  )
  got = secure_sum.unmasked(total, masks, round=0, rows=rows)
  np.testing.assert_array_equal(got[:, 0], [1, 3, 6, 0])
  twice = {**rows, 0: np.array([2, 2])}
  with pytest.raises(BrokenRoundError, match='twice'):
    secure_sum.aggregate(made, round=0, expected=rows, rows=twice, num_rows=4)


# Shares of noise.


def two_sided_law(bits, reach):
  a = 1 - 2.0**-bits
  x = np.arange(-reach, reach + 1)
  return x, (1 - a) / (1 + a) * a ** np.abs(x)


def fits(drawn, chances):
  """p-value of counts of integers in -reach .. reach against a law."""
  reach = len(chances) // 2
  counts = np.bincount(np.clip(drawn, -reach, reach) + reach,
                       minlength=len(chances))  # fmt: skip
  keep = chances * len(drawn) > 8
  rest = counts[~keep].sum(), 1 - chances[keep].sum()
  got = np.append(counts[keep], rest[0])
  want = np.append(chances[keep], rest[1]) * len(drawn)
  return scipy.stats.chisquare(got, want * got.sum() / want.sum()).pvalue


def test_one_share_has_the_polya_law():
  below = random.Random(1).randrange
  bits, parties = 3, 4
  a, r = 1 - 2.0**-bits, 1 / parties
  drawn = np.concatenate(
    [shares.polya_shares(500, parties, bits, below) for _ in range(60)]
  )
  g = np.arange(120)
  one = scipy.stats.nbinom.pmf(g, r, 1 - a)
  law = np.convolve(one, one[::-1])  # of the difference, at -119 .. 119
  assert fits(drawn, law) > 1e-3  # false alarm 1e-3, for a fixed seed
  other = scipy.stats.nbinom.pmf(g, 1.3 * r, 1 - a)
  assert fits(drawn, np.convolve(other, other[::-1])) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize('source', ['shares', 'simulator'])
def test_the_noise_is_two_sided_geometric(source):
  bits, size = 4, 12_000
  if source == 'shares':
    below = random.Random(2).randrange
    drawn = sum(shares.polya_shares(size, 5, bits, below) for _ in range(5))
  else:
    key = jax.random.key(3)
    drawn = np.asarray(shares.two_sided_geometric(key, (size // 4, 4), bits))
    drawn = drawn.ravel()
  _, law = two_sided_law(bits, 150)
  assert fits(drawn, law) > 1e-3  # false alarm 1e-3, for a fixed seed
  assert drawn.var() == pytest.approx(shares.variance(bits), rel=0.1)
  for wrong in (2 / 3, 3 / 2):
    x = np.arange(-150, 151)
    scaled = (1 - 2.0**-bits) ** (np.abs(x) / wrong)
    assert fits(drawn, scaled / scaled.sum()) < 1e-9


def test_shares_of_those_who_are_left_are_enough():
  # 6 users, 2 of whom collude: the others' shares have the whole noise.
  below = random.Random(4).randrange
  drawn = sum(shares.polya_shares(8_000, 6 - 2, 4, below) for _ in range(4))
  _, law = two_sided_law(4, 150)
  assert fits(drawn, law) > 1e-3  # false alarm 1e-3, for a fixed seed
  # With shares for 6 they would not.
  drawn = sum(shares.polya_shares(8_000, 6, 4, below) for _ in range(4))
  assert fits(drawn, law) < 1e-9


def test_shares_come_from_the_operating_system():
  drawn = [shares.polya_shares(300, 2, 6) for _ in range(2)]
  assert not np.array_equal(*drawn)
  assert shares.polya_shares(0, 2, 6).shape == (0,)
  for wrong in ((-1, 2, 6), (4, 0, 6), (4, 2, 0), (4, 2, 21)):
    with pytest.raises(ValueError, match='must be'):
      shares.polya_shares(*wrong)


def test_coins_are_flipped_with_exact_chances():
  for power, bits, digits in ((1, 3, 64), (77, 5, 64), (4096, 12, 128)):
    low, high = shares._power_bounds(power, bits, digits)
    exact = Fraction(2**bits - 1, 2**bits) ** power * 2**digits
    assert low <= exact <= high
    assert high - low <= 2
  # A draw between the bounds asks for more digits.
  low, high = shares._power_bounds(77, 5, 64)
  for second, want in ((0, True), (2**64 - 1, False)):
    words = iter([low, second])
    got = shares._power_coin(77, 5, lambda n, words=words: next(words))
    assert got == want
  below = random.Random(5).randrange
  ones = [shares._poisson_one(below) for _ in range(20_000)]
  want = scipy.stats.poisson.pmf(np.arange(6), 1) * len(ones)
  got = np.bincount(ones, minlength=6)[:6]
  # False alarm 1e-3, for a fixed seed.
  assert scipy.stats.chisquare(got, want * got.sum() / want.sum()).pvalue > 1e-3


def test_digits_have_the_chances_of_a_geometric_variable():
  bits = 5
  a = Fraction(2**bits - 1, 2**bits)
  high, low = shares._digit_thresholds(bits)
  for digit in range(bits + 3):
    power = a ** (2**digit)
    got = Fraction((int(high[digit]) << 32) + int(low[digit]), 2**64)
    assert abs(got - power / (1 + power)) <= Fraction(1, 2**65)


def test_digits_are_drawn_from_64_bits(monkeypatch):
  """Where the first 32 are those of the chance, the others decide."""
  bits = 5
  high, low = shares._digit_thresholds(bits)
  # Of two variables, one has all of its digits and the other none.
  words = np.array([[high, high], [low - 1, low]])[..., None]
  monkeypatch.setattr(
    jax.random, 'bits', lambda key, shape, dtype: jnp.asarray(words, dtype)
  )
  found = shares.two_sided_geometric(jax.random.key(0), (1,), bits)
  assert found.tolist() == [2 ** len(high) - 1]


@settings(max_examples=50)
@given(st.floats(0.01, 20), st.integers(6, 20))
def test_units_spend_epsilon_and_never_more(epsilon, bits):
  units = largest_move(epsilon, bits)
  per_unit = -math.log1p(-(2.0**-bits))
  assert units * per_unit <= move_epsilon(units, bits) <= epsilon
  assert (units + 1) * per_unit > epsilon * (1 - 1e-14)
  # A move of that many units changes no chance by more than e^epsilon.
  log_chance = lambda x: abs(x) * math.log1p(-(2.0**-bits))
  for x in (-3, 0, units // 2, units):
    assert log_chance(x - units) - log_chance(x) >= -epsilon * (1 + 1e-12)
