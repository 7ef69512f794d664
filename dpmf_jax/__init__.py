"""Differentially private matrix factorization recommenders in JAX.

The functional API, loaded on first use: `dpmf_jax.accounting` alone never
imports JAX.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from dpmf_jax.accounting import epsilon as epsilon
  from dpmf_jax.evaluation.metrics import baselines as baselines
  from dpmf_jax.evaluation.metrics import rmse as rmse
  from dpmf_jax.evaluation.ranking import ranking_metrics as ranking_metrics
  from dpmf_jax.plans.als import ALSConfig as ALSConfig
  from dpmf_jax.plans.dpals import DPALSConfig as DPALSConfig
  from dpmf_jax.plans.gaussian_mf import GaussianMFConfig as GaussianMFConfig
  from dpmf_jax.plans.langevin import LangevinConfig as LangevinConfig
  from dpmf_jax.plans.local_mf import LocalMFConfig as LocalMFConfig
  from dpmf_jax.plans.nonprivate import NonprivateConfig as NonprivateConfig
  from dpmf_jax.plans.objective_pmf import (
    ObjectivePMFConfig as ObjectivePMFConfig,
  )
  from dpmf_jax.plans.personalized_pmf import (
    PersonalizedPMFConfig as PersonalizedPMFConfig,
  )
  from dpmf_jax.plans.power_mf import PowerMFConfig as PowerMFConfig
  from dpmf_jax.plans.sdbpr import SDBPRConfig as SDBPRConfig
  from dpmf_jax.plans.sdfm import SDFMConfig as SDFMConfig
  from dpmf_jax.plans.sdmf import SDMFConfig as SDMFConfig
  from dpmf_jax.plans.untrusted_pmf import (
    UntrustedPMFConfig as UntrustedPMFConfig,
  )
  from dpmf_jax.ratings.catalog import load as load
  from dpmf_jax.ratings.formats import read as read
  from dpmf_jax.ratings.splits import random_split as random_split
  from dpmf_jax.ratings.synthetic import synthetic as synthetic
  from dpmf_jax.ratings.table import Ratings as Ratings
  from dpmf_jax.ratings.table import from_arrays as from_arrays
  from dpmf_jax.ratings.table import from_csr as from_csr
  from dpmf_jax.ratings.table import from_dataframe as from_dataframe
  from dpmf_jax.ratings.table import with_public_ids as with_public_ids
  from dpmf_jax.rows import Data as Data
  from dpmf_jax.rows import training_data as training_data
  from dpmf_jax.serving.folding import fold_in as fold_in
  from dpmf_jax.serving.models import Model as Model
  from dpmf_jax.serving.models import load_model as load_model
  from dpmf_jax.serving.models import recommend as recommend
  from dpmf_jax.serving.models import similar_items as similar_items
  from dpmf_jax.systems.als import als as als
  from dpmf_jax.systems.dpals import dpals as dpals
  from dpmf_jax.systems.gaussian_mf import gaussian_mf as gaussian_mf
  from dpmf_jax.systems.langevin import langevin as langevin
  from dpmf_jax.systems.local_mf import local_mf as local_mf
  from dpmf_jax.systems.nonprivate import nonprivate as nonprivate
  from dpmf_jax.systems.objective_pmf import objective_pmf as objective_pmf
  from dpmf_jax.systems.personalized_pmf import (
    personalized_pmf as personalized_pmf,
  )
  from dpmf_jax.systems.power_mf import power_mf as power_mf
  from dpmf_jax.systems.sdbpr import sdbpr as sdbpr
  from dpmf_jax.systems.sdfm import sdfm as sdfm
  from dpmf_jax.systems.sdmf import sdmf as sdmf
  from dpmf_jax.systems.untrusted_pmf import untrusted_pmf as untrusted_pmf
  from dpmf_jax.training import fit as fit

__version__ = '0.1.0'

# The same names for run time; a test keeps the two lists equal.
_MODULES = {
  'baselines': 'evaluation.metrics',
  'Data': 'rows',
  'epsilon': 'accounting',
  'fit': 'training',
  'fold_in': 'serving.folding',
  'from_arrays': 'ratings.table',
  'from_csr': 'ratings.table',
  'from_dataframe': 'ratings.table',
  'load': 'ratings.catalog',
  'load_model': 'serving.models',
  'Model': 'serving.models',
  'random_split': 'ratings.splits',
  'ranking_metrics': 'evaluation.ranking',
  'Ratings': 'ratings.table',
  'read': 'ratings.formats',
  'recommend': 'serving.models',
  'rmse': 'evaluation.metrics',
  'similar_items': 'serving.models',
  'synthetic': 'ratings.synthetic',
  'training_data': 'rows',
  'with_public_ids': 'ratings.table',
}


def _modules() -> dict[str, str]:
  """Every public name, the systems' functions and configs among them."""
  from dpmf_jax.plans import SPECS

  found = dict(_MODULES)
  for name, spec in SPECS.items():
    found |= {name: f'systems.{name}', spec.config.__name__: f'plans.{name}'}
  return found


def __getattr__(name: str) -> Any:
  if name == '__all__':
    return sorted(_modules())
  # A room that is not loaded yet, which its import goes on to load.
  room = importlib.util.find_spec(f'{__name__}.{name}') is not None
  if room or name.startswith('_') or name not in (found := _modules()):
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'{__name__}.{found[name]}')
  value = getattr(module, name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *_modules()})
