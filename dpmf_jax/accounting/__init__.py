"""The accountant: how private a mechanism is, without JAX.

  epsilon(guarantee, delta)        of what a system ran and released
  delta(guarantee, epsilon)        the same curve read the other way
  bounds(guarantee, delta)         every valid epsilon, by the rule of it
  renyi_epsilon(guarantee, delta, 'mironov')   and the order that gave it
  curve_of(event)(orders)          the Renyi curve
  compose(event, event, ...)       what happened one after the other
  to_dp_event(event), from_dp_event(event)     for a second opinion
  calibrate(make, epsilon=..., delta=..., low=..., high=...)
  calibrate_noise_multiplier(epsilon=..., delta=..., count=...)
  drawn_gaussian(uncovered, epsilon=..., delta=..., count=...)
  pdp_probabilities(epsilons, threshold)       of sampling by personal epsilons

Events and guarantees will do alike. Deltas, epsilons and orders may be arrays,
and give arrays. Each function has an example in its docstring.

Proved numbers are upper bounds, rounded up. What a paper says is computed by
functions called `claimed_*` from events called `Claimed*`, and the two are
never added up.
"""

# ruff: noqa: F401
from dpmf_jax.accounting import gaussian, pld, rdp, response
from dpmf_jax.accounting.accountant import (
  Accountable,
  bounds,
  delta,
  epsilon,
  renyi_epsilon,
  uncovered,
)
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
)
from dpmf_jax.accounting.claims.sdcf import claimed_sdcf_response
from dpmf_jax.accounting.composition import compose, curve_of, gaussian_mu
from dpmf_jax.accounting.dp_events import from_dp_event, to_dp_event
from dpmf_jax.accounting.events import (
  ClaimedEvent,
  ClaimedGaussianMF,
  ClaimedPure,
  Composed,
  Either,
  Event,
  Gaussian,
  L2Laplace,
  Laplace,
  Pure,
  RandomizedResponse,
  SubsampledGaussian,
  count_of,
  delta_left,
  exact_noise,
  prefix,
)
from dpmf_jax.accounting.personalized import (
  pdp_probabilities,
  personal_threshold,
  sampled_epsilon,
)
from dpmf_jax.accounting.sensitivity import (
  lattice_spacing,
  rating_gradient_sensitivity,
  split_noise_multiplier,
)
from dpmf_jax.accounting.shares import share_loss
