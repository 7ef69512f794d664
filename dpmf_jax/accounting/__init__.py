"""The accountant: how private a mechanism is, without JAX.

  epsilon(guarantee, delta)   the epsilon of what a system ran and released
  delta(guarantee, epsilon)   the same curve read the other way
  bounds(guarantee, delta)    every valid epsilon, by the rule it comes from
  calibrate(make, epsilon=..., delta=..., low=..., high=...)
  calibrate_noise_multiplier(epsilon=..., delta=..., count=...)
  drawn_gaussian(uncovered, epsilon=..., delta=..., count=...)

Proved numbers are upper bounds, rounded up. What a paper says is computed by
functions called `claimed_*` from events called `Claimed*`, and the two are
never added up.
"""

# ruff: noqa: F401
from dpmf_jax.accounting import gaussian, pld, rdp, response
from dpmf_jax.accounting.accountant import bounds, delta, epsilon, uncovered
from dpmf_jax.accounting.calibration import (
  calibrate,
  calibrate_noise_multiplier,
  drawn_gaussian,
)
from dpmf_jax.accounting.claims.gaussian_mf import (
  claimed_gaussian_mf_epsilon_per_step,
  claimed_gaussian_mf_noise_multiplier,
  claimed_gaussian_mf_order,
)
from dpmf_jax.accounting.claims.objective import (
  claimed_hua_share_scale,
  claimed_objective_scale,
  claimed_pdp_probabilities,
)
from dpmf_jax.accounting.claims.sdcf import claimed_sdcf_response
from dpmf_jax.accounting.composition import curve_of, gaussian_mu
from dpmf_jax.accounting.events import (
  ClaimedEvent,
  ClaimedGaussianMF,
  ClaimedPure,
  Composed,
  Event,
  Gaussian,
  L2Laplace,
  Laplace,
  Pure,
  RandomizedResponse,
  SubsampledGaussian,
  count_of,
  delta_left,
  joint_noise_multiplier,
  prefix,
)
from dpmf_jax.accounting.personalized import personal_threshold, sampled_epsilon
from dpmf_jax.accounting.sensitivity import (
  lattice_spacing,
  rating_gradient_sensitivity,
  split_noise_multiplier,
)
from dpmf_jax.accounting.shares import share_loss
