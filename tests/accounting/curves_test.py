"""Renyi curves and exact forms of single mechanisms, against mpmath."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from dpmf_jax.accounting import (
  L2Laplace,
  Laplace,
  Pure,
  RandomizedResponse,
  SubsampledGaussian,
  curve_of,
  epsilon,
  rdp,
  response,
)

ORDERS = (1.001, 1.5, 2.0, 7.3, 64.0, 3000.0)
EPSILONS = (1e-6, 1e-3, 0.1, 1.0, 10.0, 1e4)


def renyi(order, here, there):
  """The divergence of two lists of probabilities, by its definition."""
  order = mpmath.mpf(order)
  moment = sum(
    p**order * q ** (1 - order) for p, q in zip(here, there, strict=True)
  )
  return mpmath.log(moment) / (order - 1)


def is_just_above(ours, truth, slack):
  return truth <= ours <= truth * (1 + mpmath.mpf(slack))


@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('epsilon', EPSILONS)
@pytest.mark.parametrize('categories', [2, 6])
def test_randomized_response(epsilon, order, categories):
  with mpmath.workdps(50):
    total = mpmath.exp(epsilon) + categories - 1
    here = [mpmath.exp(epsilon) / total] + [1 / total] * (categories - 1)
    there = [here[1], here[0], *here[2:]]
    truth = renyi(order, here, there)
    event = RandomizedResponse(epsilon, 3, categories)
    assert is_just_above(curve_of(event)(order) / 3, truth, 1e-12)
    if categories == 2:
      assert curve_of(Pure(epsilon))(order) * 3 == curve_of(event)(order)


@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('epsilon', EPSILONS)
def test_laplace(epsilon, order):
  with mpmath.workdps(50):
    noise, a = mpmath.mpf(1 / epsilon), mpmath.mpf(order)
    # Mironov (2017), Proposition 6, as printed.
    up = a / (2 * a - 1) * mpmath.exp((a - 1) / noise)
    down = (a - 1) / (2 * a - 1) * mpmath.exp(-a / noise)
    truth = mpmath.log(up + down) / (a - 1)
    ours = curve_of(Laplace(1 / epsilon))(order)
    assert is_just_above(ours, truth, 1e-12)


def l2_moment(epsilon, order, dimension):
  """E (P/Q)^(a-1) from the two densities in polar coordinates."""

  def integral(weight):
    inner = lambda angle, r: (
      weight(
        r, math.sqrt(r * r - 2 * r * epsilon * math.cos(angle) + epsilon**2)
      )
      * r ** (dimension - 1)
      * math.sin(angle) ** (dimension - 2)
    )
    return integrate.dblquad(inner, 0, 50 + dimension, 0, math.pi)[0]

  there = integral(lambda r, s: math.exp(-order * r + (order - 1) * s))
  return there / integral(lambda r, _: math.exp(-r))


@pytest.mark.parametrize(
  ('epsilon', 'order', 'dimension'), [(1.0, 3.0, 2), (0.5, 6.5, 5)]
)
def test_l2_laplace_is_what_its_densities_say(epsilon, order, dimension):
  event = L2Laplace(1 / epsilon, 1, dimension)
  truth = math.log(l2_moment(epsilon, order, dimension)) / (order - 1)
  assert curve_of(event)(order) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize('epsilon', [0.01, 1.0, 30.0, 1e3])
@pytest.mark.parametrize('dimension', [2, 3, 20, 100])
def test_l2_laplace_is_rounded_up(epsilon, dimension):
  for order in (1.001, 2.0, 30.0, 1e4):
    with mpmath.workdps(60):
      z, s = mpmath.mpf(epsilon) / 2, 2 * mpmath.mpf(order) - 1
      n = mpmath.mpf(dimension) / 2 - 1
      bracket = mpmath.besselk(n + 1, z) * mpmath.besseli(n, s * z)
      bracket += mpmath.besselk(n, z) * mpmath.besseli(n + 1, s * z) / s
      truth = mpmath.log(bracket * z / s**n) / (order - 1)
      ours = curve_of(L2Laplace(1 / epsilon, 1, dimension))(order)
      # The absolute error is that of the Bessel functions.
      assert truth <= ours <= truth * (1 + 1e-12) + 2e-12 / (order - 1)


def test_l2_laplace_gets_better_with_dimension():
  for order in (1.5, 4.0, 50.0):
    dimensions = (None, 2, 3, 5, 20, 100, 10**4)
    at = [curve_of(L2Laplace(2.0, 1, d))(order) for d in dimensions]
    assert at == sorted(at, reverse=True)
    assert at[0] == curve_of(Laplace(2.0))(order) > 2 * at[4]


def kov_oracle(epsilon, count, total):
  """The hockey-stick divergence of `count` responses, term by term."""
  with mpmath.workdps(60):
    keep = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
    delta = mpmath.mpf(0)
    for i in range(count + 1):
      loss = (2 * i - count) * mpmath.mpf(epsilon)
      chance = mpmath.binomial(count, i) * keep**i * (1 - keep) ** (count - i)
      delta += chance * max(1 - mpmath.exp(total - loss), 0)
    return delta


@settings(max_examples=40, derandomize=True)
@given(st.floats(-6, 2), st.integers(1, 60), st.floats(0.0, 0.999))
def test_optimal_composition_is_exact_both_ways(log_epsilon, count, share):
  epsilon = 10.0**log_epsilon
  total = share * count * epsilon
  truth = kov_oracle(epsilon, count, total)
  ours = response.kov_delta(epsilon, count, total)
  # A gap between corners that is a difference of large numbers loses digits.
  assert truth * (1 - mpmath.mpf(1e-10)) <= ours <= truth * (1 + 1e-9) + 5e-324
  if 0 < ours < 1:
    # Where the curve is flat, many epsilons have the same delta.
    back = response.kov_epsilon(epsilon, count, ours)
    assert kov_oracle(epsilon, count, back) <= ours * (1 + mpmath.mpf(1e-14))
    lower = max(back * (1 - 1e-6) - 1e-9 * epsilon, 0)
    assert back == 0 or kov_oracle(epsilon, count, lower) > ours * (1 - 1e-9)


def test_optimal_epsilon_is_never_below_the_exact_one():
  rng = np.random.default_rng(1)
  for log_epsilon, log_delta in rng.uniform((-4, -5), (1, -0.5), (200, 2)):
    epsilon, count = math.exp(log_epsilon), int(rng.integers(2, 30))
    total = response.kov_epsilon(epsilon, count, 10.0**log_delta)
    assert kov_oracle(epsilon, count, total) <= 10.0**log_delta


def test_optimal_composition_of_a_million():
  # The central limit: mu = eps sqrt(k) = 1 up to eps^2, so 4.8865 of GDP.
  ours = response.kov_epsilon(1e-3, 10**6, 1e-6)
  assert ours == pytest.approx(4.8865, abs=1e-3)
  assert response.kov_epsilon(1e-3, 10**6, 1e-300) < 40
  assert response.kov_epsilon(1e4, 10**6, 1e-300) == pytest.approx(1e10)


@pytest.mark.parametrize('order', [2, 30, 400, 1024])
@pytest.mark.parametrize('rate', [1e-3, 0.2])
def test_sampled_curves_are_never_below_their_sums(order, rate):
  noise = 3.0
  with mpmath.workdps(60):
    q = mpmath.mpf(rate)
    terms = (
      mpmath.binomial(order, i)
      * q**i
      * (1 - q) ** (order - i)
      * mpmath.exp(mpmath.mpf(i * (i - 1)) / (2 * mpmath.mpf(noise) ** 2))
      for i in range(order + 1)
    )
    exact = mpmath.log(mpmath.fsum(terms)) / (order - 1)
    assert curve_of(SubsampledGaussian(noise, rate))(order) >= exact


@pytest.mark.parametrize('order', [1.01, 1.5, 2, 3.7, 8, 20.5])
@pytest.mark.parametrize(
  ('rate', 'noise'),
  # With 3 a point of the rule is where the likelihoods are the same.
  [(0.01, 1.0), (0.3, 0.7), (1e-4, 2.0), (0.5, 20.0), (0.1, 3.0)],
)
def test_poisson_sampling_is_the_moment_of_a_mixture(rate, noise, order):
  with mpmath.workdps(40):
    q, s, a = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(order)
    density = lambda x: (
      (1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))) ** a
      * mpmath.npdf(x, 0, s)
    )
    cuts = sorted([-20 * s, -5 * s, 0, a / 2, a, a + 5 * s, a + 20 * s])
    truth = mpmath.log(mpmath.quad(density, cuts)) / (a - 1)
    ours = curve_of(SubsampledGaussian(noise, rate))(order)
    assert is_just_above(ours, truth, 3e-12)


def sampled(rate, noise, order):
  """The Poisson curve by the trapezoidal rule; its error is below e^-150."""
  q, s, a = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(order)
  step = min(s, s**2) / 8
  total = mpmath.mpf(0)
  for place in range(int(-20 * s / step), int((a + 20 * s) / step) + 2):
    x = place * step
    u = q * mpmath.expm1((x - 0.5) / s**2)
    above = mpmath.exp(a * mpmath.log1p(u)) - 1 - a * u
    total += above * mpmath.exp(-((x / s) ** 2) / 2)
  excess = total * step / s / mpmath.sqrt(2 * mpmath.pi)
  return mpmath.log1p(excess) / (a - 1)


@pytest.mark.parametrize('rate', [1e-9, 1e-3, 0.1, 0.9])
@pytest.mark.parametrize('noise', [0.4, 1.0, 10.0, 1e6])
def test_poisson_sampling_is_rounded_up_down_to_order_1(rate, noise):
  curve = curve_of(SubsampledGaussian(noise, rate))
  for rest in (1e-13, 1e-9, 1e-6, 1e-3, 0.3):
    with mpmath.workdps(60):
      truth = sampled(rate, noise, 1 + rest)
      assert is_just_above(curve(1 + rest), truth, 2e-12), rest


def test_poisson_sampling_is_rounded_up_where_its_terms_cancel():
  # Rates for which q^a and the moments of the noise nearly cancel, and for
  # which the curve is below the smallest float.
  for noise, order in ((0.53, 162), (0.85, 869), (2.0, 500), (0.68, 424)):
    for part in (0.9, 1.0, 1.1):
      rate = math.exp(-(order - 1) / 2 / noise**2 * part)
      ours = curve_of(SubsampledGaussian(noise, rate))(order)
      with mpmath.workdps(60):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)
        above = sum(
          mpmath.binomial(order, i)
          * (1 - q) ** (order - i)
          * q**i
          * mpmath.expm1(mpmath.mpf(i * (i - 1)) / 2 / s**2)
          for i in range(2, order + 1)
        )
        assert ours >= mpmath.log1p(above) / (order - 1)


@pytest.mark.parametrize(
  ('rate', 'noise'), [(0.9, 1.0), (0.5, 1.0), (0.1, 0.5)]
)
def test_many_sampled_releases_cost_no_less_than_their_mean(rate, noise):
  # At order 1 the curve is the mean loss, which is all that counts for so many.
  with mpmath.workdps(60):
    mean = sampled(rate, noise, 1 + mpmath.mpf(10) ** -25)
    stated = epsilon(SubsampledGaussian(noise, rate, 10**18), 1e-6)
    assert is_just_above(stated, 10**18 * mean, 1e-6)


@pytest.mark.parametrize(
  ('rate', 'noise'), [(0.01, 1.0), (0.3, 0.7), (1e-3, 100.0), (0.5, 2.0)]
)
def test_sampling_without_replacement_agrees_with_dp_accounting(rate, noise):
  curve = curve_of(SubsampledGaussian(noise, rate, 1, 'without_replacement'))
  orders = [1.5, 2, 3, 4.5, 20, 200]
  at = theirs._compute_rdp_sample_wor_gaussian(rate, noise, orders)
  for order, value in zip(orders, at, strict=True):
    # They do not know that a sample is no worse than all of it.
    value = min(value, order / 2 / noise**2)
    assert curve(order) == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize('sampling', ['poisson', 'without_replacement'])
def test_sampling_everything_is_not_sampling(sampling):
  curve = curve_of(SubsampledGaussian(3.0, 1.0, 7, sampling))
  assert curve(5.0) == pytest.approx(rdp.gaussian(3.0, 7)(5.0), rel=1e-14)
  almost = curve_of(SubsampledGaussian(3.0, 1 - 1e-9, 7, sampling))
  assert almost(5.0) <= curve(5.0)
  assert almost(5.0) == pytest.approx(curve(5.0), rel=1e-6)


def test_curves_rise_with_the_order():
  events = (
    Laplace(3.0),
    L2Laplace(3.0, 1, 20),
    RandomizedResponse(1.0, 1, 6),
    SubsampledGaussian(1.0, 0.01),
    SubsampledGaussian(1.0, 0.01, 1, 'without_replacement'),
  )
  orders = 1 + np.geomspace(1e-3, 1e6, 60)
  for event in events:
    values = [curve_of(event)(float(order)) for order in orders]
    # Up to the 1e-12 that some of them are rounded up by.
    assert np.all(np.diff(values) >= -1e-9 * np.abs(values[1:])), event
    assert values[-1] > values[0]


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 30.0])
def test_renyi_delta_is_the_inverse_of_epsilon(epsilon):
  curve = rdp.gaussian(2.0, 10)
  log_delta = rdp.log_delta_canonne(curve, epsilon)
  assert rdp.delta_canonne(curve, epsilon) == pytest.approx(math.exp(log_delta))
  back = rdp.epsilon_canonne(curve, math.exp(log_delta)).epsilon
  assert back == pytest.approx(epsilon, rel=1e-9)
