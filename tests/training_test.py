import itertools

import jax
import numpy as np
import pytest

from dpmf_jax.plans.gaussian_mf import GaussianMFConfig
from dpmf_jax.plans.spec import SOUND
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems.gaussian_mf import gaussian_mf
from dpmf_jax.training import fit


@pytest.fixture
def system():
  return gaussian_mf(
    GaussianMFConfig(**SOUND, scale=(1.0, 5.0), delta=1e-6, epsilon=5, steps=11)
  )


def test_blocks_do_not_change_the_bits(system, small_ratings):
  data = training_data(small_ratings)
  whole = fit(system, jax.random.key(0), data)
  for block in (1, 4, 100):
    parts = fit(system, jax.random.key(0), data, report_every=block)
    jax.tree.map(np.testing.assert_array_equal, whole, parts)


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(system, small_ratings):
  data = training_data(small_ratings)
  reports = []
  whole = fit(
    system, jax.random.key(0), data, report_every=4, callbacks=[reports.append]
  )
  assert [report.step for report in reports] == [0, 4, 8, 11]
  for report in reports:
    again = fit(
      system,
      jax.random.key(0),
      data,
      report_every=4,
      start=(report.step, report.state),
    )
    jax.tree.map(np.testing.assert_array_equal, whole, again)


def test_a_run_never_takes_more_steps_than_the_guarantee(system, small_ratings):
  data = training_data(small_ratings)
  state = fit(system, jax.random.key(0), data)
  with pytest.raises(ValueError, match='start at step 12, but there are 11'):
    fit(system, jax.random.key(0), data, start=(12, state))


def test_two_devices_agree_with_one(system, small_ratings):
  one = fit(system, jax.random.key(0), training_data(small_ratings))
  mesh = device_mesh(2)
  two = fit(
    system, jax.random.key(0), training_data(small_ratings, mesh=mesh, slices=4)
  )
  for a, b in zip(one.factors, two.factors, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_each_step_has_noise_of_its_own(system, small_ratings):
  data = training_data(small_ratings)
  states = []
  fit(
    system,
    jax.random.key(0),
    data,
    report_every=1,
    callbacks=[lambda r: states.append(r.state.factors.user)],
  )
  norms = [float(np.linalg.norm(b - a)) for a, b in itertools.pairwise(states)]
  assert len(set(norms)) == 11


@pytest.mark.parametrize('every', [0, -1, 1.5, '2'])
def test_report_every_must_be_positive(system, small_ratings, every):
  with pytest.raises(ValueError, match=f'^report_every={every!r} must be'):
    fit(
      system,
      jax.random.key(0),
      training_data(small_ratings),
      report_every=every,
    )


def test_what_it_cannot_take_says_what_it_takes(system, small_ratings):
  key, data = jax.random.key(0), training_data(small_ratings)
  with pytest.raises(ValueError, match=r'data of type Ratings .*training_data'):
    fit(system, key, small_ratings)
  with pytest.raises(ValueError, match='system of type function must'):
    fit(gaussian_mf, key, data)
  with pytest.raises(ValueError, match=r'key=0 must be .*random_key\(\)'):
    fit(system, 0, data)
