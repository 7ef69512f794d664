"""Public knowledge beside private systems, which is of noisy sums alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmf_jax
from dpmf_jax.plans import config_of
from dpmf_jax.ratings import priors
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import training_data
from dpmf_jax.systems import build, public
from dpmf_jax.training import fit

ITEMS, RANK = 60, 2
SETTINGS = {
  'power_mf': {'epsilon': 1.0, 'delta': 1e-6, 'rank': 0},
  'dpals': {'epsilon': 4.0, 'delta': 1e-6, 'rank': 1, 'steps': 1},
  'ranking_mf': {
    'epsilon': 4.0,
    'delta': 1e-6,
    'unit': 'user',
    'rank': 2,
    'rounds': 1,
  },
}


# `runs/public_ratings_test.py` has a run that is quicker to compile.
NAMES = [pytest.param(name, marks=pytest.mark.slow) for name in public.NAMES]


@functools.cache
def ratings_of(seed, users=200, each=15):
  """Ratings on 1..5 of items that are the same for all seeds."""
  items = np.random.default_rng(0)
  mean, factor = (
    3 + 0.7 * items.normal(size=ITEMS),
    items.normal(size=(ITEMS, RANK)),
  )
  popular = items.exponential(size=ITEMS)
  draw = np.random.default_rng(seed)
  user = np.repeat(np.arange(users), each)
  liking = draw.normal(size=(users, RANK)) @ factor.T
  keys = np.log(popular) + 0.7 * liking + draw.gumbel(size=(users, ITEMS))
  item = np.argsort(-keys, axis=1)[:, :each].reshape(-1)
  value = mean[item] + 0.5 * liking[user, item]
  value = np.clip(np.round(value + 0.5 * draw.normal(size=len(user))), 1, 5)
  return from_arrays(user, item, value, scale=(1, 5))


@functools.cache
def prior_of(kind):
  found = priors.prior_of(ratings_of(1, users=500), rank=4, list_rank=8)
  if kind == 'shuffled':
    order = np.random.default_rng(5).permutation(ITEMS)
    ids = tuple(found.item_ids[k] for k in order)
    return found._replace(item_ids=ids)
  return found


@functools.cache
def trained(name):
  """The system, its state on some ratings, and these."""
  system = build(name, config_of(name, 'sound', scale=(1, 5), **SETTINGS[name]))
  data = training_data(ratings_of(2))
  return system, fit(system, jax.random.key(3), data), data


def with_prior(name, kind):
  matched = priors.matched(prior_of(kind), ratings_of(2))
  return public.with_public(name, trained(name)[0], matched)


def items_of(system, state, data):
  release = system.release(state, data)
  return [np.asarray(leaf) for leaf in jax.tree.leaves(release)]


def reads_ratings(system, state, data):
  """Whether what is released, given noisy sums, is moved by other ratings."""
  other = training_data(ratings_of(9))
  one, two = items_of(system, state, data), items_of(system, state, other)
  return not all(map(np.array_equal, one, two))


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('kind', ['same', 'shuffled'])
def test_what_is_released_is_made_of_noisy_sums_and_public_numbers(name, kind):
  own, state, data = trained(name)
  system = with_prior(name, kind)
  assert system._replace(model=own.model) == own  # steps, noise, guarantee
  assert not reads_ratings(system, state, data)


@pytest.mark.parametrize('name', NAMES)
def test_a_model_that_looks_at_ratings_is_found(name):
  own, state, data = trained(name)
  system = with_prior(name, 'same')

  def careless(state, data):
    found = system.model(state, data)
    total = jnp.sum(data.by_item.value)
    return found._replace(offset=found.offset + 1e-3 * total)

  assert reads_ratings(own._replace(model=careless), state, data)


@pytest.mark.parametrize('name', NAMES)
def test_public_ratings_of_other_items_change_no_score(name):
  own, state, data = trained(name)
  system = with_prior(name, 'shuffled')
  scores = lambda found: np.asarray(found.factors.user @ found.factors.item.T)
  expected, found = own.model(state, data), system.model(state, data)
  assert not public.public_columns_used(
    found, priors.matched(prior_of('shuffled'), ratings_of(2))
  )
  np.testing.assert_allclose(scores(found), scores(expected), atol=2e-5)
  width = expected.factors.item.shape[1]
  columns = found.factors.item
  kept = columns[:, :width] if name == 'ranking_mf' else columns[:, -width:]
  assert np.array_equal(kept, expected.factors.item)


@pytest.mark.parametrize('name', NAMES[:2])
def test_public_ratings_of_the_same_items_help(name):
  own, state, data = trained(name)
  rest = ratings_of(2, each=25)  # with those trained on
  test = training_data(rest).by_user
  error = lambda system: float(
    dpmf_jax.release_rmse(system.model(state, data), test, (1.0, 5.0))
  )
  assert error(with_prior(name, 'same')) < error(own) - 0.03


def test_means_follow_public_ones_and_what_sums_say_besides():
  draw = np.random.default_rng(4)
  given = draw.normal(size=400)
  true = 0.2 + given + 0.3 * draw.normal(size=400)
  number = np.full(400, 50.0)
  totals = public.Totals(
    jnp.asarray(number),
    jnp.asarray(number * true + 20 * draw.normal(size=400)),
    jnp.full(400, 400.0),
    jnp.float32(3.0),
    jnp.float32(1.0),
  )
  known = jnp.arange(400) < 300
  line = public.posterior_means(
    totals, jnp.asarray(given), jnp.zeros(400), known, jnp.float32(0.5)
  )
  assert abs(line.slope - 1) < 4 * line.error + 0.05
  error = np.abs(np.asarray(line.mean) - true)
  assert error[:300].mean() < 0.8 * np.abs(20 / 50 * 0.8)
  assert error[:300].mean() < error[300:].mean()


def test_systems_that_take_none_say_so():
  matched = priors.matched(prior_of('same'), ratings_of(2))
  with pytest.raises(ValueError, match='takes no public_ratings: use power_mf'):
    public.with_public('als', trained('power_mf')[0], matched)
  clicks = from_arrays([0, 1], [3, 4], scale=None, max_count=1)
  matched = priors.matched(priors.prior_of(clicks), ratings_of(2))
  with pytest.raises(ValueError, match='say nothing of ratings'):
    public.with_public('power_mf', trained('power_mf')[0], matched)
