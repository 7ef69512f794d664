"""Two-stage randomized response, and fake residuals between bounds."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import sdcf_claims

from dpmf_jax import accounting
from dpmf_jax.mechanisms import response, truncated

WORDS = 2.0**32


def made(h, items, epsilon_instant, epsilon_permanent=None, sent=None):
  answer = accounting.claimed_sdcf_response(
    epsilon_permanent=epsilon_permanent or 2 * epsilon_instant,
    epsilon_instant=epsilon_instant,
    num_rated=h,
    num_items=items,
    sent=sent or h,
  )
  return answer, response.coins(answer)


def chances(coins):
  """(f/2, p, q) as they are drawn."""
  return tuple(float(part) / WORDS for part in coins)


def both_stages(key, bits, coins, rounds):
  """B' and what is sent in each round [rounds, I]."""
  first, rest = jax.random.split(key)
  permanent = response.permanent(first, bits, coins.flip)
  sent = jax.vmap(response.instantaneous, (0, None, None, None))(
    jax.random.split(rest, rounds), permanent, coins.unrated, coins.rated
  )
  return permanent, sent


def test_frequencies_are_those_of_lemma_1():
  answer, coins = made(h=300, items=1000, epsilon_instant=300.0)
  bits = jnp.arange(1000) < 300
  keys = jax.random.split(jax.random.key(0), 2_000)
  sent = jax.jit(jax.vmap(lambda key: both_stages(key, bits, coins, 1)[1][0]))(
    keys
  )
  for rated, wanted in ((True, answer.rated_in_all), (False, None)):
    wanted = answer.unrated_in_all if wanted is None else wanted
    drawn = np.asarray(sent)[:, np.asarray(bits) == rated]
    # Five standard errors: a false alarm has chance 6e-7. Those of 600,000
    # draws are 0.1 % of p* and less, so a mix-up of p, q, p*, q* shows.
    error = math.sqrt(wanted * (1 - wanted) / drawn.size)
    assert abs(drawn.mean() - wanted) < 5 * error
  total = np.asarray(sent).sum(axis=1)
  assert abs(total.mean() - 300) < 5 * total.std() / math.sqrt(len(total))


@pytest.mark.parametrize('factor', [2 / 3, 1.0, 3 / 2])
def test_permanent_bits_flip_at_the_rate_asked(factor):
  answer, coins = made(h=50, items=200, epsilon_instant=50.0)
  bits = jnp.arange(200) < 50
  keys = jax.random.split(jax.random.key(1), 2_000)
  drawn = jax.vmap(response.permanent, (0, None, None))(keys, bits, coins.flip)
  flipped = int((np.asarray(drawn) != np.asarray(bits)).sum())
  chance = factor * float(answer.flip) / 2
  pvalue = scipy.stats.binomtest(flipped, drawn.size, chance).pvalue
  assert (pvalue > 1e-4) == (factor == 1.0)


def profiles(items, h):
  for places in itertools.combinations(range(items), h):
    yield np.isin(np.arange(items), places)


def outcomes(items):
  return np.array(list(itertools.product((False, True), repeat=items)))


def likelihood(given, outcome, if_zero, if_one):
  """Of independent bits that are one with a chance by the given bit."""
  one = np.where(given, if_one, if_zero)
  return np.prod(np.where(outcome, one, 1 - one), axis=-1)


@pytest.mark.parametrize(('items', 'h'), [(4, 2), (5, 2), (4, 1), (5, 3)])
def test_theorems_1_and_2_by_enumeration(items, h):
  epsilon = 1.5
  _, coins = made(h=h, items=items, epsilon_instant=epsilon)
  flip, p, q = chances(coins)
  every = outcomes(items)
  permanent, instant, twice = [], [], []
  for bits in profiles(items, h):
    first = likelihood(bits, every, flip, 1 - flip)  # of each B'
    assert first.sum() == pytest.approx(1)
    second = likelihood(every[:, None], every[None], p, q)  # [B', S]
    permanent.append(first)
    instant.append(first @ second)
    # Two rounds together: the same B' in both.
    both = np.einsum('b,bs,bt->st', first, second, second)
    twice.append(both.ravel())
  worst = lambda table: max(
    np.log(a / b).max() for a, b in itertools.permutations(table, 2)
  )
  # Profiles of h ones differ in 2 min(h, I - h) bits at most.
  share = min(h, items - h) / h
  assert worst(permanent) == pytest.approx(2 * epsilon * share, rel=1e-6)
  # Theorem 2 has h, not 2 h: one bit up and one down is one ratio of odds.
  assert worst(instant) == pytest.approx(epsilon * share, rel=1e-6)
  # All rounds say more than one, and less than the permanent bits.
  assert worst(instant) < worst(twice) < worst(permanent)
  proved = sdcf_claims.epsilon_permanent(2 * flip, h)
  assert worst(permanent) <= proved * (1 + 1e-9)


def test_rounding_never_says_more():
  rng = np.random.default_rng(0)
  for _ in range(200):
    h = int(rng.integers(1, 700))
    epsilon = float(10 ** rng.uniform(-2, 2))
    answer, coins = made(h=h, items=1700, epsilon_instant=epsilon, sent=85.0)
    flip, p, q = chances(coins)
    assert flip >= answer.flip / 2
    assert p >= answer.unrated
    assert q <= answer.rated
    assert abs(flip - answer.flip / 2) <= 1 / WORDS
    stated = sdcf_claims.epsilon_permanent(2 * flip, h)
    assert stated <= 2 * epsilon * (1 + 1e-9)
    if epsilon > 1:
      assert stated == pytest.approx(2 * epsilon, rel=1e-3)


def test_coins_are_counted_exactly(monkeypatch):
  """As many of the 2^32 words say yes as there are coins, and no others."""
  coins = response.Coins(*(jnp.uint32(n) for n in (5, 7, 2**32 - 1)))

  def said(stage, coin, *more):
    words = jnp.array([coin - 1, coin])
    monkeypatch.setattr(response.noise, 'words', lambda key, size: words)
    return stage(jax.random.key(0), *more).tolist()

  zeros, ones = jnp.zeros(2, bool), jnp.ones(2, bool)
  flip, both = coins.flip, (coins.unrated, coins.rated)
  assert said(response.permanent, flip, zeros, flip) == [True, False]
  assert said(response.permanent, flip, ones, flip) == [False, True]
  assert said(response.instantaneous, both[0], zeros, *both) == [True, False]
  assert said(response.instantaneous, both[1], ones, *both) == [True, False]


@pytest.mark.parametrize('flip', [0.2689, np.float32(0.3), 5, jnp.int32(5)])
def test_a_probability_is_no_coin(flip):
  bits = jnp.arange(100) < 30
  with pytest.raises(TypeError, match=r'flip=.* must be of uint32'):
    response.permanent(jax.random.key(0), bits, flip)
  with pytest.raises(TypeError, match=r'rated=.* must be of uint32'):
    response.instantaneous(jax.random.key(0), bits, jnp.uint32(5), flip)
  with pytest.raises(TypeError, match=r'flip=.* must be of uint32'):
    jax.jit(response.permanent)(jax.random.key(0), bits, flip)


def test_nothing_but_bits_leaves():
  coins, key = jnp.uint32(2**30), jax.random.key(0)
  wrong = jnp.array([0, 2, 1, -1], jnp.int8)
  with pytest.raises(ValueError, match='bits have a 2, but must be 0 or 1'):
    response.permanent(jax.random.clone(key), wrong, coins)
  with pytest.raises(TypeError, match='bits are float32'):
    response.permanent(jax.random.clone(key), wrong.astype('float32'), coins)
  traced = jax.jit(response.permanent)(jax.random.clone(key), wrong, coins)
  assert traced.dtype == bool
  whole = response.permanent(jax.random.clone(key), wrong != 0, coins)
  np.testing.assert_array_equal(traced, whole)
  # Integers are the same bits.
  one, other = (
    response.permanent(jax.random.clone(key), jnp.arange(50) % 2 == 1, coins),
    response.permanent(jax.random.clone(key), jnp.arange(50) % 2, coins),
  )
  np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 4.0])
def test_answers_lie_as_often_as_epsilon_says(epsilon):
  bits = (jnp.arange(40_000) % 4 == 0).reshape(200, 200)
  answers = response.randomized_response(jax.random.key(3), bits, epsilon)
  assert answers.shape == bits.shape
  lies = int((answers != bits).sum())
  chance = 1 / (1 + math.exp(epsilon))
  assert scipy.stats.binomtest(lies, bits.size, chance).pvalue > 1e-6
  counts = response.debiased_counts(answers, epsilon)
  assert counts.shape == (200,)
  error = math.sqrt(bits.size * chance * (1 - chance)) / (1 - 2 * chance)
  assert abs(float(counts.sum()) - bits.sum()) < 5 * error
  columns = response.debiased_counts(answers, epsilon, axis=1)
  np.testing.assert_allclose(columns.sum(), counts.sum(), rtol=1e-3)


@pytest.mark.parametrize('epsilon', [-1.0, 21.0, math.nan, True])
def test_epsilons_that_are_none_are_refused(epsilon):
  with pytest.raises(ValueError, match='epsilon'):
    response.randomized_response(jax.random.key(0), jnp.ones(2, bool), epsilon)
  with pytest.raises(ValueError, match='above 0'):
    response.debiased_counts(jnp.ones(2, bool), 0.0)


def test_certain_is_all_coins_but_one():
  answer, _ = made(h=10, items=100, epsilon_instant=1.0)
  coins = response.coins(answer._replace(rated=1.0, unrated=0.0))
  assert (coins.rated, coins.unrated) == (2**32 - 1, 0)


def auc(scores, labels):
  ranks = scipy.stats.rankdata(scores)
  ones = labels.sum()
  zeros = labels.size - ones
  return (ranks[labels].sum() - ones * (ones + 1) / 2) / (ones * zeros)


@pytest.mark.slow
def test_average_attack_finds_all_without_the_permanent_stage():
  answer, coins = made(h=20, items=100, epsilon_instant=20.0)
  bits = jnp.arange(100) < 20
  p_all, q_all = (
    np.uint32(x * WORDS) for x in (answer.unrated_in_all, answer.rated_in_all)
  )
  rounds = 2_000

  def one_stage(key):
    keys = jax.random.split(key, rounds)
    sent = jax.vmap(response.instantaneous, (0, None, None, None))(
      keys, bits, p_all, q_all
    )
    return sent.mean(axis=0)

  def two_stages(key):
    return both_stages(key, bits, coins, rounds)[1].mean(axis=0)

  found = []
  for attack in (one_stage, two_stages):
    keys = jax.random.split(jax.random.key(2), 100)
    scores = np.asarray(jax.lax.map(attack, keys))
    labels = np.asarray(bits)
    found.append(np.mean([auc(each, labels) for each in scores]))
  # A single round has the same p* and q* in both. The mean of many rounds
  # finds B in the one, and B' in the other: an AUC of 1 - f/2.
  limit = 1 - float(answer.flip) / 2
  assert found[0] > 0.999
  # The AUC of 100 clients has a standard error below 0.006.
  assert found[1] == pytest.approx(limit, abs=0.03)
  assert limit == pytest.approx(0.731, abs=1e-3)


@pytest.mark.parametrize('capacity', [1, 5, 12, 40])
def test_chosen_are_the_first_ones(capacity):
  rng = np.random.default_rng(3)
  for density in (0.0, 0.2, 1.0):
    bits = rng.random(37) < density
    wanted = np.flatnonzero(bits)[:capacity]
    found = np.asarray(response.chosen(jnp.asarray(bits), capacity))
    np.testing.assert_array_equal(found[: wanted.size], wanted)
    assert (found[wanted.size :] == 37).all()


def test_messages_hardly_ever_have_no_room():
  for mean in (0.5, 10.0, 85.0, 165.0, 1000.0):
    # Poisson bits are as spread as independent bits of that mean can be.
    room = response.capacity(mean, 10**6)
    assert scipy.stats.poisson.sf(room, mean) < 1e-7
  assert response.capacity(85.0, 90) == 90


# Fake residuals.


@pytest.mark.parametrize('mean', [-1.5, 0.0, 0.1, 2.0])
@pytest.mark.parametrize('epsilon', [4.0, 1.0, 0.25, 0.0625])
def test_bound_is_that_of_the_paper(mean, epsilon):
  found = truncated.bound(*map(jnp.float32, (epsilon, mean, 0.7)))
  wanted = sdcf_claims.bound(epsilon, mean=mean, deviation=0.7)
  assert float(found) == pytest.approx(wanted, rel=2e-4)


def test_bound_at_the_ends():
  f = jnp.float32
  assert float(truncated.bound(f(0), f(0.3), f(1))) == np.inf
  # Too small for the paper's range: its end.
  assert float(truncated.bound(f(0.01), f(0.3), f(1))) == pytest.approx(2.3)
  assert np.isfinite(truncated.bound(f(1), f(0.3), f(0)))


@pytest.mark.parametrize('mean', [-2.0, 0.3, 1.5])
@pytest.mark.parametrize('alpha', [0.2, 1.0, np.inf])
def test_fake_residuals_have_the_truncated_law(mean, alpha):
  n, deviation = 20_000, 0.8
  f = jnp.float32
  drawn = np.asarray(
    truncated.truncated_normal(
      jax.random.key(4), (n,), f(mean), f(deviation), f(alpha)
    )
  )
  assert np.isfinite(drawn).all()
  assert np.abs(drawn).max() <= alpha
  for factor in (2 / 3, 1.0, 3 / 2):
    # Of the bound, or of the deviation where there is none.
    a = alpha * factor if np.isfinite(alpha) else alpha
    s = deviation if np.isfinite(alpha) else deviation * factor
    law = scipy.stats.truncnorm(
      (-a - mean) / s, (a - mean) / s, loc=mean, scale=s
    )
    # A false alarm has chance 1e-4, for each of nine.
    pvalue = scipy.stats.kstest(drawn, law.cdf).pvalue
    assert (pvalue > 1e-4) == (factor == 1.0)
