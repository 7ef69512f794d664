"""The noisy equations of objective perturbation, for tests of moves."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from quiet import quiet

from dpmf_jax.plans import objective_pmf as settings
from dpmf_jax.plans.objective_pmf import PAPER, ObjectivePMFConfig
from dpmf_jax.plans.personalized_pmf import PersonalizedPMFConfig
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import training_data
from dpmf_jax.systems import noisy_equations, pmf
from dpmf_jax.systems.personalized_pmf import personalized_pmf

SCALE = (1.0, 5.0)


def sound(relation='add_remove', **fields):
  fields = {'epsilon': 1.0, 'scale': SCALE} | fields
  return ObjectivePMFConfig(variant='sound', relation=relation, **fields)


def paper(**fields):
  fields = PAPER | {'epsilon': 1.0, 'scale': SCALE, 'rank': 4} | fields
  return ObjectivePMFConfig(**fields)


def personal(**fields):
  fields = {'variant': 'sound', 'relation': 'add_remove'} | fields
  return PersonalizedPMFConfig(**({'epsilon': 1.0, 'scale': SCALE} | fields))


def without_noise(state):
  if isinstance(state, pmf.State):
    hyper = state.hyper._replace(noise=jnp.float32(0))
    return state._replace(hyper=hyper, eta=jnp.zeros_like(state.eta))
  return state._replace(hyper=quiet(state.hyper))


@functools.cache
def probe(step):
  """The (A, b) that `step` computes its items from, noise and all."""

  @jax.jit
  def run(key, state, data):
    seen = []

    def watch(matrix, vector, variance, prior_variance):
      seen.append((matrix, vector))
      return jnp.zeros_like(vector)

    with mock.patch.object(noisy_equations, 'shrunk_solution', watch):
      step(key, state, data)
    return seen[0]

  return run


@functools.cache
def started(init):
  return jax.jit(init)


def sums(system, ratings, *, noise=False, seed=0):
  """A and b of a step in float64; by default without noise."""
  data = training_data(ratings)
  state = started(system.init)(jax.random.key(0), data)
  state = state if noise else without_noise(state)
  found = probe(system.step)(jax.random.key(seed), state, data)
  return [np.asarray(part, np.float64) for part in found]


def moves(config, before, after):
  """How far (count_scale * A, b) of each item moved, and A and b alone."""
  matrix, vector = (a - b for a, b in zip(before, after, strict=True))
  # The Frobenius norm has entries off the diagonal twice.
  matrix = np.linalg.norm(matrix, axis=(1, 2))
  vector = np.linalg.norm(vector, axis=1)
  return np.hypot(config.count_scale * matrix, vector), matrix, vector


def spread_ratings():
  """A popular item, items with one rating, users with one rating, and values
  at both ends of the scale and between."""
  users = [0, 1, 2, 3, 4, 5, 0, 1, 2, 1, 2, 0]
  items = [0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 4]
  values = [5, 1, 3, 5, 1, 4, 1, 5, 5, 2, 4, 1]
  return from_arrays(users, items, values, scale=SCALE)


def features_for(ratings, rank, seed=0, size=1.0):
  rng = np.random.default_rng(seed)
  return size * rng.normal(size=(ratings.num_users, rank))


def personal_moves(config, ratings, features=None):
  """The most that each rating can spend: its move over the noise's scale."""
  system = personalized_pmf(config, features)
  before = sums(system, ratings)
  scale = settings.noise_scale(
    sound(
      epsilon=config.epsilon, count_scale=config.count_scale, shift=config.shift
    ),
    1 if features is None else features.shape[1],
  )
  for gone in range(len(ratings)):
    kept = ratings.take(np.arange(len(ratings)) != gone)
    moved = moves(config, before, sums(system, kept))[0]
    assert not np.delete(moved, ratings.item[gone]).any()
    yield gone, moved[ratings.item[gone]] / scale
