"""Every system by name, with its config class and its named presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dpmf_jax.systems import (
  gaussian_mf,
  gaussian_mf_config,
  langevin,
  nonprivate,
  objective_pmf,
  objective_pmf_config,
  personalized_pmf,
  sdbpr,
  sdmf,
  sdmf_config,
  untrusted_pmf,
  untrusted_pmf_config,
)
from dpmf_jax.types import System


class Entry(NamedTuple):
  """How to make a system.

  Attributes:
    config: its config class.
    build: config -> System.
    variants: variant -> settings that a script starts from; library callers
      give every setting that has no default in the config class themselves.
  """

  config: Callable[..., Any]
  build: Callable[[Any], System]
  variants: Mapping[str, Mapping[str, Any]]


SYSTEMS = {
  'gaussian_mf': Entry(
    gaussian_mf_config.GaussianMFConfig,
    gaussian_mf.gaussian_mf,
    {
      'sound': {'variant': 'sound', 'relation': 'add_remove'},
      'paper': gaussian_mf_config.PAPER,
    },
  ),
  'objective_pmf': Entry(
    objective_pmf_config.ObjectivePMFConfig,
    objective_pmf.objective_pmf,
    {
      'sound': {'variant': 'sound', 'relation': 'add_remove'},
      'paper': objective_pmf_config.PAPER,
    },
  ),
  'personalized_pmf': Entry(
    personalized_pmf.PersonalizedPMFConfig,
    personalized_pmf.personalized_pmf,
    {
      'sound': {'variant': 'sound', 'relation': 'add_remove'},
      'paper': personalized_pmf.PAPER,
    },
  ),
  'sdmf': Entry(
    sdmf_config.SDMFConfig, sdmf.sdmf, {'paper': sdmf_config.PAPER}
  ),
  'sdbpr': Entry(
    sdbpr.SDBPRConfig,
    sdbpr.sdbpr,
    {'paper': sdbpr.PAPER, 'none': sdbpr.NONE},
  ),
  'langevin': Entry(
    langevin.LangevinConfig,
    langevin.langevin,
    {'paper': langevin.PAPER, 'none': langevin.NONE},
  ),
  'untrusted_pmf': Entry(
    untrusted_pmf_config.UntrustedPMFConfig,
    untrusted_pmf.untrusted_pmf,
    {
      'sound': {'variant': 'sound', 'relation': 'add_remove'},
      'paper': untrusted_pmf_config.PAPER,
    },
  ),
  'nonprivate': Entry(
    nonprivate.NonprivateConfig, nonprivate.nonprivate, {'none': {}}
  ),
}
