"""Differentially private matrix factorization recommenders in JAX.

The functional API, loaded on first use: `dpmf_jax.accounting` alone never
imports JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from dpmf_jax.accounting import epsilon as epsilon
  from dpmf_jax.evaluation.metrics import baselines as baselines
  from dpmf_jax.evaluation.metrics import rmse as rmse
  from dpmf_jax.evaluation.ranking import ranking_metrics as ranking_metrics
  from dpmf_jax.plans.als import ALSConfig as ALSConfig
  from dpmf_jax.plans.dpals import DPALSConfig as DPALSConfig
  from dpmf_jax.plans.gaussian_mf import GaussianMFConfig as GaussianMFConfig
  from dpmf_jax.plans.nonprivate import NonprivateConfig as NonprivateConfig
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
  from dpmf_jax.systems.nonprivate import nonprivate as nonprivate
  from dpmf_jax.training import fit as fit

__version__ = '0.1.0'

# The same names for run time; a test keeps the two lists equal.
_MODULES = {
  'als': 'dpmf_jax.systems.als',
  'ALSConfig': 'dpmf_jax.plans.als',
  'baselines': 'dpmf_jax.evaluation.metrics',
  'Data': 'dpmf_jax.rows',
  'dpals': 'dpmf_jax.systems.dpals',
  'DPALSConfig': 'dpmf_jax.plans.dpals',
  'epsilon': 'dpmf_jax.accounting',
  'fit': 'dpmf_jax.training',
  'fold_in': 'dpmf_jax.serving.folding',
  'from_arrays': 'dpmf_jax.ratings.table',
  'from_csr': 'dpmf_jax.ratings.table',
  'from_dataframe': 'dpmf_jax.ratings.table',
  'gaussian_mf': 'dpmf_jax.systems.gaussian_mf',
  'GaussianMFConfig': 'dpmf_jax.plans.gaussian_mf',
  'load': 'dpmf_jax.ratings.catalog',
  'load_model': 'dpmf_jax.serving.models',
  'Model': 'dpmf_jax.serving.models',
  'nonprivate': 'dpmf_jax.systems.nonprivate',
  'NonprivateConfig': 'dpmf_jax.plans.nonprivate',
  'random_split': 'dpmf_jax.ratings.splits',
  'ranking_metrics': 'dpmf_jax.evaluation.ranking',
  'Ratings': 'dpmf_jax.ratings.table',
  'read': 'dpmf_jax.ratings.formats',
  'recommend': 'dpmf_jax.serving.models',
  'rmse': 'dpmf_jax.evaluation.metrics',
  'similar_items': 'dpmf_jax.serving.models',
  'synthetic': 'dpmf_jax.ratings.synthetic',
  'training_data': 'dpmf_jax.rows',
  'with_public_ids': 'dpmf_jax.ratings.table',
}

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  value = getattr(importlib.import_module(_MODULES[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *_MODULES})
