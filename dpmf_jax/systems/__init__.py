"""Every system by name, with its config class and its named presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dpmf_jax.plans import dpals as dpals_plan
from dpmf_jax.plans import gaussian_mf as gaussian_mf_plan
from dpmf_jax.plans import local_mf as local_mf_plan
from dpmf_jax.plans import objective_pmf as objective_pmf_plan
from dpmf_jax.plans import power_mf as power_mf_plan
from dpmf_jax.plans import sdmf as sdmf_plan
from dpmf_jax.plans import traffic
from dpmf_jax.plans import untrusted_pmf as untrusted_pmf_plan
from dpmf_jax.systems import (
  als,
  dpals,
  gaussian_mf,
  langevin,
  local_mf,
  nonprivate,
  objective_pmf,
  personalized_pmf,
  power_mf,
)
from dpmf_jax.systems.sdcf import sdbpr, sdfm, sdmf
from dpmf_jax.systems.untrusted import untrusted_pmf
from dpmf_jax.types import System


class Personal(NamedTuple):
  """What a personalised system says of ratings' own epsilons."""

  statement: Callable[..., dict[str, Any]]  # (config, Levels | None)
  accounted: Callable[..., Any]  # (config, epsilons) -> epsilons


class Entry(NamedTuple):
  """How to make a system.

  Attributes:
    config: its config class.
    build: config -> System; with user features as a second argument where
      `takes_features`.
    variants: variant -> settings that a script starts from; library callers
      give every setting that has no default in the config class themselves.
    personal: the module's functions about ratings' own epsilons, or None where
      all have the same.
    traffic: (config, num_users=, num_items=, num_ratings=) -> bytes that a
      client receives and sends in a round, by name, or None; None for a system
      without clients.
    resolved: (config, num_users, num_items) -> config with what these numbers
      choose; None where they choose nothing.
  """

  config: Callable[..., Any]
  build: Callable[..., System]
  variants: Mapping[str, Mapping[str, Any]]
  takes_features: bool = False
  personal: Personal | None = None
  traffic: Callable[..., dict[str, float] | None] | None = None
  resolved: Callable[..., Any] | None = None


def _in_bytes(sizes: Mapping[str, float]) -> dict[str, float]:
  return {f'bytes_{way}': float(size) for way, size in sizes.items()}


SYSTEMS = {
  'gaussian_mf': Entry(
    gaussian_mf_plan.GaussianMFConfig,
    gaussian_mf.gaussian_mf,
    {
      'sound': {'variant': 'sound', 'relation': 'add_remove'},
      'paper': gaussian_mf_plan.PAPER,
    },
  ),
  'objective_pmf': Entry(
    objective_pmf_plan.ObjectivePMFConfig,
    objective_pmf.objective_pmf,
    {
      'sound': {'variant': 'sound', 'relation': 'add_remove'},
      'paper': objective_pmf_plan.PAPER,
    },
    takes_features=True,
  ),
  'personalized_pmf': Entry(
    personalized_pmf.PersonalizedPMFConfig,
    personalized_pmf.personalized_pmf,
    {
      'sound': {'variant': 'sound', 'relation': 'add_remove'},
      'paper': personalized_pmf.PAPER,
    },
    takes_features=True,
    personal=Personal(
      personalized_pmf.personal, personalized_pmf.accounted_epsilons
    ),
  ),
  'local_mf': Entry(
    local_mf_plan.LocalMFConfig,
    local_mf.local_mf,
    {
      'sound': {
        'variant': 'sound',
        'unit': 'rating',
        'relation': 'add_remove',
      },
    },
    traffic=lambda config, *, num_items, **_: _in_bytes(
      local_mf_plan.traffic(config, num_items)._asdict()
    ),
  ),
  'sdmf': Entry(
    sdmf_plan.SDMFConfig,
    sdmf.sdmf,
    {'paper': sdmf_plan.PAPER},
    traffic=traffic.traffic,
  ),
  'sdbpr': Entry(
    sdbpr.SDBPRConfig,
    sdbpr.sdbpr,
    {'paper': sdbpr.PAPER, 'none': sdbpr.NONE},
    traffic=traffic.traffic,
  ),
  'sdfm': Entry(
    sdfm.SDFMConfig,
    sdfm.sdfm,
    {'paper': sdfm.PAPER, 'none': sdfm.NONE},
    traffic=sdfm.bytes_of,
  ),
  'langevin': Entry(
    langevin.LangevinConfig,
    langevin.langevin,
    {'paper': langevin.PAPER, 'none': langevin.NONE},
  ),
  'dpals': Entry(
    dpals_plan.DPALSConfig,
    dpals.dpals,
    {'sound': {'relation': 'add_remove'}},
    resolved=dpals_plan.resolved,
  ),
  'als': Entry(als.ALSConfig, als.als, {'none': {}}),
  'power_mf': Entry(
    power_mf_plan.PowerMFConfig,
    power_mf.power_mf,
    {'sound': {'relation': 'add_remove'}},
  ),
  'untrusted_pmf': Entry(
    untrusted_pmf_plan.UntrustedPMFConfig,
    untrusted_pmf.untrusted_pmf,
    {
      # One: a user who looks at the release and knows their own share.
      'sound': {
        'variant': 'sound',
        'relation': 'add_remove',
        'colluders': 1,
      },
      'paper': untrusted_pmf_plan.PAPER,
    },
    traffic=lambda config, *, num_users, num_items, num_ratings: _in_bytes(
      traffic.communication(
        config, num_items=num_items, ratings_per_user=num_ratings / num_users
      )
    ),
  ),
  'nonprivate': Entry(
    nonprivate.NonprivateConfig, nonprivate.nonprivate, {'none': {}}
  ),
}
