"""Rounds message by message against the simulator that adds noise at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax.plans.sdmf import SDMFConfig
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import training_data
from dpmf_jax.systems import sdmf
from dpmf_jax.systems.sdcf import messages as sdcf_messages
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf import sgld, types

USERS, ITEMS, RANK = 20, 12, 2
CONFIG = SDMFConfig(
  epsilon=20.0,
  scale=(1.0, 5.0),
  rank=RANK,
  sent=5.0,
  likelihood_scale=1.0,  # noise is much of what is sent
  online=0.8,
)


def noisier(keys, total, at, public):
  """`sdcf.item_gradients` with 5/4 of the noise."""
  nothing = public._replace(item=jnp.zeros_like(public.item))
  silent = total._replace(gradient=jnp.zeros_like(total.gradient))
  clones = tuple(jax.random.clone(key) for key in keys)
  noise = sdcf.item_gradients(clones, silent, at, nothing).gradient
  made = sdcf.item_gradients(keys, total, at, public)
  return made._replace(gradient=made.gradient + 0.25 * noise)


def summaries(draw, seed, count):
  """(means, variances) [n] of draws [n], each with their standard errors."""
  keys = jax.random.split(jax.random.key(seed), count)
  words = jax.random.key_data(keys).reshape(-1, 50, 2)
  batch = jax.vmap(lambda word: draw(jax.random.wrap_key_data(word)))
  found = jax.jit(lambda words: jax.lax.map(batch, words))(words)
  found = np.float64(found).reshape(count, -1)
  squares = np.square(found - found.mean(axis=0))
  return [
    (x.mean(axis=0), x.std(axis=0) / np.sqrt(count)) for x in (found, squares)
  ]


def worst(first, second):
  """The largest difference of means and of variances, in its deviations."""
  return [
    np.max(np.abs(a - b) / np.hypot(s, t))
    for (a, s), (b, t) in zip(first, second, strict=True)
  ]


# Up to 65 numbers are compared, normal to a good approximation: one key in
# 8,000 gives a false alarm, and keys are fixed.
MOST = 4.9


@pytest.mark.slow
def test_sums_of_noise_are_those_of_the_messages():
  rng = np.random.default_rng(0)
  normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  error = normal(USERS, ITEMS) * jnp.asarray(rng.random((USERS, ITEMS)) < 0.4)
  vector = normal(USERS, RANK)
  ridge = jnp.full(RANK, 0.3)
  public = types.Public(
    item=normal(ITEMS, RANK),
    step_size=jnp.float32(0.7),
    langevin=sgld.Langevin(*map(jnp.float32, (0.7, 0.6, 2.0)), ridge, ridge),
    epsilon_value=jnp.float32(1.0),
    tolerance=jnp.float32(0.0),
  )
  used = (error != 0).astype(jnp.float32)

  def at_once(key):
    total = types.Total(error.T @ vector, used.sum(axis=0))
    keys = tuple(jax.random.split(key))
    made = sdcf.item_gradients(keys, total, slice(None), public)
    return made.gradient.reshape(-1)

  def by_messages(key):
    def report(key, error, used, vector):
      total = types.Total(error[:, None] * vector[None, :], used)
      keys = tuple(jax.random.split(key))
      made = sdcf.item_gradients(keys, total, jnp.arange(ITEMS), public)
      item = jnp.where(used > 0, jnp.arange(ITEMS), ITEMS)
      return types.Upload(item, made.gradient, jnp.bool_(False))

    keys = jax.random.split(key, USERS)
    reports = jax.vmap(report)(keys, error, used, vector)
    total = sdcf_messages.summed_reports(reports, ITEMS)
    return total.gradient.reshape(-1)

  once = summaries(at_once, 1, 1_000)
  summed = summaries(by_messages, 2, 1_000)
  assert max(worst(once, summed)) < MOST
  # The test can fail: all of the variance is noise, and 5/4 of it is found.
  noisy = [once[0], tuple(1.25**2 * x for x in once[1])]
  assert worst(noisy, summed)[1] > 6


@pytest.mark.slow
def test_whole_rounds_are_the_same_in_distribution():
  ratings = synthetic(
    num_users=USERS, num_items=ITEMS, num_ratings=90, rank=2, seed=3
  )
  data = training_data(ratings)
  state = sdmf.sdmf(CONFIG).init(jax.random.key(0), data)

  def moved(step, key):
    after = step(key, state, data)
    change = jax.tree.map(jnp.subtract, after.factors, state.factors)
    parts = [change.item.reshape(-1), change.user.reshape(-1), after.sent[None]]
    return jnp.concatenate(parts)

  report = functools.partial(
    sdcf.client_report, client_round=sdmf.client_round, gradients=noisier
  )
  wrong = sdcf_messages.MessageRounds(report, sgld.DESCENT, 'item', CONFIG.sent)
  steps = sdmf.sdmf(CONFIG).step, sdmf.sdmf_by_messages(CONFIG).step, wrong
  usual, messages, noisy = (
    summaries(functools.partial(moved, step), seed, 3_000)
    for seed, step in enumerate(steps)
  )
  assert max(worst(usual, messages)) < MOST
  assert worst(usual, noisy)[1] > 6
