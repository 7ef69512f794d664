"""Differentially private matrix factorization recommenders in JAX.

The functional API, loaded on first use: `dpmf_jax.accounting` alone never
imports JAX.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from collections.abc import Callable
  from typing import ParamSpec

  from dpmf_jax import accounting as accounting
  from dpmf_jax import auditing as auditing
  from dpmf_jax import blocks as blocks
  from dpmf_jax import certificates as certificates
  from dpmf_jax import commands as commands
  from dpmf_jax import evaluation as evaluation
  from dpmf_jax import federated as federated
  from dpmf_jax import files as files
  from dpmf_jax import homes as homes
  from dpmf_jax import kernels as kernels
  from dpmf_jax import keys as keys
  from dpmf_jax import mechanisms as mechanisms
  from dpmf_jax import plans as plans
  from dpmf_jax import ratings as ratings
  from dpmf_jax import rows as rows
  from dpmf_jax import runs as runs
  from dpmf_jax import serving as serving
  from dpmf_jax import systems as systems
  from dpmf_jax import training as training
  from dpmf_jax import types as types
  from dpmf_jax.accounting import epsilon as epsilon
  from dpmf_jax.auditing import audit as audit
  from dpmf_jax.evaluation.comparison import Comparison as Comparison
  from dpmf_jax.evaluation.metrics import baselines as baselines
  from dpmf_jax.evaluation.metrics import release_rmse as release_rmse
  from dpmf_jax.evaluation.metrics import rmse as rmse
  from dpmf_jax.evaluation.ranking import ranking_metrics as ranking_metrics
  from dpmf_jax.keys import random_key as random_key
  from dpmf_jax.plans.als import ALSConfig as ALSConfig
  from dpmf_jax.plans.dpals import DPALSConfig as DPALSConfig
  from dpmf_jax.plans.ease import EASEConfig as EASEConfig
  from dpmf_jax.plans.gaussian_mf import GaussianMFConfig as GaussianMFConfig
  from dpmf_jax.plans.langevin import LangevinConfig as LangevinConfig
  from dpmf_jax.plans.local_mf import LocalMFConfig as LocalMFConfig
  from dpmf_jax.plans.local_ranking import (
    LocalRankingConfig as LocalRankingConfig,
  )
  from dpmf_jax.plans.moments import MomentsConfig as MomentsConfig
  from dpmf_jax.plans.nonprivate import NonprivateConfig as NonprivateConfig
  from dpmf_jax.plans.objective_pmf import (
    ObjectivePMFConfig as ObjectivePMFConfig,
  )
  from dpmf_jax.plans.personalized_pmf import (
    PersonalizedPMFConfig as PersonalizedPMFConfig,
  )
  from dpmf_jax.plans.power_mf import PowerMFConfig as PowerMFConfig
  from dpmf_jax.plans.ranking_mf import RankingMFConfig as RankingMFConfig
  from dpmf_jax.plans.sdbpr import SDBPRConfig as SDBPRConfig
  from dpmf_jax.plans.sdfm import SDFMConfig as SDFMConfig
  from dpmf_jax.plans.sdmf import SDMFConfig as SDMFConfig
  from dpmf_jax.plans.untrusted_pmf import (
    UntrustedPMFConfig as UntrustedPMFConfig,
  )
  from dpmf_jax.ratings.catalog import load as load
  from dpmf_jax.ratings.formats import read as read
  from dpmf_jax.ratings.priors import Prior as Prior
  from dpmf_jax.ratings.priors import public_prior as public_prior
  from dpmf_jax.ratings.priors import save_prior as save_prior
  from dpmf_jax.ratings.splits import hold_out_last as hold_out_last
  from dpmf_jax.ratings.splits import random_split as random_split
  from dpmf_jax.ratings.synthetic import synthetic as synthetic
  from dpmf_jax.ratings.table import Ratings as Ratings
  from dpmf_jax.ratings.table import from_arrays as from_arrays
  from dpmf_jax.ratings.table import from_csr as from_csr
  from dpmf_jax.ratings.table import from_dataframe as from_dataframe
  from dpmf_jax.ratings.table import with_public_ids as with_public_ids
  from dpmf_jax.rows import Data as Data
  from dpmf_jax.rows import training_data as training_data
  from dpmf_jax.runs.compare import compare as compare
  from dpmf_jax.runs.run import Run as Run
  from dpmf_jax.runs.train import train as train
  from dpmf_jax.serving.folding import fold_in as fold_in
  from dpmf_jax.serving.models import Model as Model
  from dpmf_jax.serving.models import load_model as load_model
  from dpmf_jax.serving.models import model_from_release as model_from_release
  from dpmf_jax.serving.recommendations import predict as predict
  from dpmf_jax.serving.recommendations import recommend as recommend
  from dpmf_jax.serving.recommendations import similar_items as similar_items
  from dpmf_jax.systems import register as register
  from dpmf_jax.systems.factories import auto as auto
  from dpmf_jax.training import fit as fit
  from dpmf_jax.types import Factors as Factors
  from dpmf_jax.types import Guarantee as Guarantee
  from dpmf_jax.types import Release as Release
  from dpmf_jax.types import System as System

  _P = ParamSpec('_P')

  # A system takes the settings of its config; the variant fills some in.
  def _factory(config: Callable[_P, object]) -> Callable[_P, System]: ...

  als = _factory(ALSConfig)
  dpals = _factory(DPALSConfig)
  ease = _factory(EASEConfig)
  gaussian_mf = _factory(GaussianMFConfig)
  langevin = _factory(LangevinConfig)
  local_mf = _factory(LocalMFConfig)
  local_ranking = _factory(LocalRankingConfig)
  moments = _factory(MomentsConfig)
  nonprivate = _factory(NonprivateConfig)
  objective_pmf: Callable[..., System]
  personalized_pmf: Callable[..., System]
  power_mf = _factory(PowerMFConfig)
  ranking_mf = _factory(RankingMFConfig)
  sdbpr = _factory(SDBPRConfig)
  sdfm = _factory(SDFMConfig)
  sdmf = _factory(SDMFConfig)
  untrusted_pmf = _factory(UntrustedPMFConfig)

__version__ = '0.1.0'

# The same names for run time, by module; a test keeps the two lists equal.
_NAMES = {
  'accounting': 'epsilon',
  'auditing': 'audit',
  'evaluation.comparison': 'Comparison',
  'evaluation.metrics': 'baselines release_rmse rmse',
  'evaluation.ranking': 'ranking_metrics',
  'keys': 'random_key',
  'ratings.catalog': 'load',
  'ratings.formats': 'read',
  'ratings.priors': 'Prior public_prior save_prior',
  'ratings.splits': 'hold_out_last random_split',
  'ratings.synthetic': 'synthetic',
  'ratings.table': (
    'Ratings from_arrays from_csr from_dataframe with_public_ids'
  ),
  'rows': 'Data training_data',
  'runs.compare': 'compare',
  'runs.run': 'Run',
  'runs.train': 'train',
  'serving.folding': 'fold_in',
  'serving.models': 'Model load_model model_from_release',
  'serving.recommendations': 'predict recommend similar_items',
  'systems': 'register',
  'systems.factories': 'auto',
  'training': 'fit',
  'types': 'Factors Guarantee Release System',
}


def _public() -> dict[str, str]:
  """The module of every public name; none for functions of systems."""
  from dpmf_jax.plans import NAMES, SPECS

  found = dict.fromkeys(NAMES, '')
  found |= {SPECS[n].config.__name__: f'plans.{n}' for n in NAMES}
  for module, names in _NAMES.items():
    found |= dict.fromkeys(names.split(), module)
  return found


def _rooms() -> list[str]:
  return [found.name for found in pkgutil.iter_modules(__path__)]


def _loaded(name: str) -> Any:
  if name in _rooms():
    return importlib.import_module(f'{__name__}.{name}')
  if name == '__all__':
    return sorted(_public())
  # What is asked for by Python itself should import nothing.
  if name.startswith('_') or (module := _public().get(name)) is None:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  if module:
    return getattr(importlib.import_module(f'{__name__}.{module}'), name)
  from dpmf_jax.systems.factories import factory

  return factory(name)


def __dir__() -> list[str]:
  return sorted({*globals(), *_public(), *_rooms()})


if not TYPE_CHECKING:  # to which all would be Any

  def __getattr__(name: str) -> Any:
    value = globals()[name] = _loaded(name)
    return value
