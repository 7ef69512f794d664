"""Filters: what a budget counts when runs are chosen after seeing releases."""

import math

import numpy as np
import pytest
from scipy import ndimage, special

from dpmf_jax import accounting
from dpmf_jax.accounting import (
  events,
  filters,
  gaussian,
  rdp,
  response,
)

DELTA = 1e-3
BUDGET = 1.0


def best_adversary(fits, first, unit, epsilon):
  """The delta at BUDGET of the best choices after each release, on a grid.

  Runs are Gaussian with mu^2 = `unit` or randomized responses with `epsilon`, a
  multiple of the grid's step; `first` is the first one. Choices are found
  backwards, from E (1 - e^(BUDGET - loss))+ at the end.
  """
  step = 0.005
  losses = np.arange(-900, 901) * step
  reach = np.arange(-450, 451) * step
  # The last is the chance of the smallest step: convolve1d turns it around.
  kernel = np.exp(-((reach + unit / 2) ** 2) / (2 * unit))
  kernel /= kernel.sum()
  shift, kept = round(epsilon / step), special.expit(epsilon)

  def after(run, value):
    if run == 'gaussian':
      return ndimage.convolve1d(value, kernel, mode='nearest')
    padded = np.pad(value, shift, mode='edge')
    return kept * padded[2 * shift :] + (1 - kept) * padded[: value.size]

  made = {
    'gaussian': events.Gaussian(unit**-0.5),
    'response': events.Pure(epsilon),
  }
  values = {}

  def best(counts):
    """What can be reached from each loss after so many runs of each kind."""
    if counts not in values:
      value = np.maximum(-np.expm1(BUDGET - losses), 0)
      for run in made:
        more = {**dict(counts), run: dict(counts)[run] + 1}
        runs = [made[run] for run in made for _ in range(more[run])]
        runs.remove(made[first])
        if fits([made[first], *runs]):
          further = best(tuple(more.items()))
          value = np.maximum(value, after(run, further))
      values[counts] = value
    return values[counts]

  begun = tuple((run, int(run == first)) for run in made)
  return after(first, best(begun))[losses.size // 2]


def by_total(runs):
  return accounting.epsilon(events.Composed(tuple(runs)), DELTA) <= BUDGET


def by_filters(runs):
  rule = filters.rule(runs[0], budget=BUDGET, delta=DELTA)
  return filters.counted(runs, delta=DELTA, by=rule) <= BUDGET


WHOLE = gaussian.mu_of(BUDGET, 0.99 * DELTA) ** 2


@pytest.mark.parametrize('first', ['gaussian', 'response'])
@pytest.mark.parametrize('epsilon', [0.05, 0.15])
def test_the_best_adversary_stays_within_delta(first, epsilon):
  found = best_adversary(by_filters, first, WHOLE / 3, epsilon)
  assert found <= DELTA
  if first == 'gaussian':  # all three, whatever is seen
    assert found > 0.98 * DELTA


def test_a_total_of_a_mixture_is_no_filter_even_with_a_budget():
  found = best_adversary(by_total, 'gaussian', WHOLE / 3, 0.5)
  assert found == pytest.approx(1.488 * DELTA, rel=0.01)


def test_the_parts_of_delta_are_no_more_than_delta():
  noise, pure = events.Gaussian(9.0), events.Pure(0.2)
  for runs, share, names in (
    ([noise, noise], filters.MIXED_SHARE, {'gaussian', 'renyi'}),
    ([noise, pure], filters.MIXED_SHARE, {'gaussian', 'renyi'}),
    ([pure, noise], filters.MAIN_SHARE, {'renyi'}),
    ([pure, pure], filters.MAIN_SHARE, {'pure', 'renyi'}),
  ):
    rule = filters.rule(runs[0], budget=BUDGET, delta=DELTA)
    assert sum(rule[:4]) < 1
    found = filters.bounds(runs, delta=DELTA, by=rule)
    assert found.keys() == names
    curve = accounting.curve_of(events.Composed(tuple(runs)))
    order = filters.fixed_order(BUDGET, share * DELTA)
    assert (
      found['renyi'] == rdp.epsilon_canonne(curve, share * DELTA, order).epsilon
    )
    if runs == [noise, noise]:
      exact = accounting.epsilon(
        events.Gaussian(9.0, 2), filters.MAIN_SHARE * DELTA
      )
      assert found['gaussian'] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize('epsilon', [1e-9, 1e-3, 0.1, 1.0, 3.0, 10.0, 100.0])
def test_what_is_pure_is_gaussian_too(epsilon):
  mu = filters._mu(events.Pure(epsilon))
  assert special.log_ndtr(-mu / 2) <= -special.log1p(math.exp(epsilon)) + 1e-15
  for total in np.linspace(0, epsilon, 20):
    exact = response.kov_delta(epsilon, 1, total)
    assert exact * (1 - 1e-9) <= gaussian.delta_of(mu, total)


def some_runs(rng):
  kinds = [
    lambda: events.Gaussian(rng.uniform(5, 50), int(rng.integers(1, 5))),
    lambda: events.Pure(rng.uniform(0, 0.5)),
    lambda: events.Laplace(rng.uniform(5, 50), 2),
    lambda: events.L2Laplace(rng.uniform(5, 50), 1, dimension=3),
    lambda: events.RandomizedResponse(rng.uniform(0, 0.5), 2, categories=4),
    lambda: events.SubsampledGaussian(rng.uniform(2, 9), 0.1, 3),
    lambda: events.Composed((events.Gaussian(20.0), events.Pure(0.1))),
  ]
  return [kinds[rng.integers(len(kinds))]() for _ in range(rng.integers(2, 5))]


@pytest.mark.parametrize('seed', range(12))
def test_filters_are_bounds_that_grow(seed):
  runs = some_runs(np.random.default_rng(seed))
  rule = filters.rule(runs[0], budget=2.0, delta=1e-5)
  counts = [
    filters.counted(runs[:number], delta=1e-5, by=rule)
    for number in range(1, len(runs) + 1)
  ]
  assert counts == sorted(counts)
  together = accounting.epsilon(events.Composed(tuple(runs)), 1e-5)
  assert counts[-1] >= together - 1e-9


@pytest.mark.parametrize('budget', [0.01, 0.1, 1.0, 10.0, 100.0])
def test_the_order_is_near_the_best_one_for_half_of_the_budget(budget):
  order = filters.fixed_order(budget, 1e-6)
  curve = rdp.gaussian(1 / gaussian.mu_of(budget / 2, 1e-6))
  best = rdp.epsilon_canonne(curve, 1e-6).epsilon
  assert best <= rdp.epsilon_canonne(curve, 1e-6, order).epsilon <= 1.01 * best


@pytest.mark.parametrize(
  ('name', 'value', 'words'),
  [
    ('main', 1.0, 'parts of delta must be below 1'),
    ('order', 1.0, 'is no filter'),
    ('pure', 0.0, 'pure must be > 0'),
    ('ends', 'some', 'ends must be a number'),
  ],
)
def test_what_is_no_rule(name, value, words):
  rule = filters.rule(events.Pure(0.1), budget=1.0, delta=1e-6)
  assert filters.checked(rule) == rule
  with pytest.raises(ValueError, match=words):
    filters.checked(rule._replace(**{name: value}))
