"""Systems with a bug planted in them: what the auditor must find.

Each system claims, and is believed to have, the guarantee of a sound one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax.accounting.geometric import law
from dpmf_jax.auditing import Target
from dpmf_jax.auditing.pairs import library_pairs
from dpmf_jax.kernels.profiles import item_sums
from dpmf_jax.mechanisms import geometric, noise
from dpmf_jax.plans.gaussian_mf import (
  GaussianMFConfig,
  plan,
  sensitivity,
)
from dpmf_jax.plans.local_ranking import LocalRankingConfig
from dpmf_jax.plans.moments import MomentsConfig
from dpmf_jax.plans.power_mf import PowerMFConfig
from dpmf_jax.plans.ranking_mf import RankingMFConfig
from dpmf_jax.systems import (
  gaussian_mf,
  local_ranking,
  moments,
  power_mf,
  ranking_mf,
)
from dpmf_jax.systems.traced import SGD
from dpmf_jax.types import Relation, System, Unit

# Of those that are not of Gaussian MF.
_COMMON: dict[str, Any] = {
  'relation': 'add_remove',
  'scale': (1.0, 5.0),
  'rank': 1,
}


def planted(epsilon: float = 1.0, delta: float = 1e-5) -> dict[str, Target]:
  """Every bug by name; those that end in 'none' are the sound systems."""
  more = {
    'ranking': _ranking(epsilon, delta),
    'local ranking': _local_ranking(epsilon),
    'levels': _levels(epsilon),
    'moments': _moments(epsilon, delta),
  }
  return _gaussian(epsilon, delta) | {
    f'{system}: {name}': target
    for system, targets in more.items()
    for name, target in targets.items()
  }


def _local_ranking(epsilon: float) -> dict[str, Target]:
  """Bugs of local ranking, seen in the answers of clients."""
  config = LocalRankingConfig(**{**_COMMON, 'rank': 0}, epsilon=epsilon)
  sound = local_ranking.local_ranking(config)
  pair = library_pairs('rating', 'add_remove', config.scale)[0]

  def rarely(key, data):
    state = sound.init(key, data)
    own = state.hyper.response
    own = own._replace(lie=own.lie // 3 * 2)
    return state._replace(hyper=state.hyper._replace(response=own))

  def twice(key, state, data):
    first, again = (
      sound.step(each, state, data) for each in jax.random.split(key)
    )
    return again._replace(observed=first.observed + 2 * again.observed)

  bug = lambda **more: Target(
    'planted', '', sound._replace(**more), pair, 'known', 0.0, view='transcript'
  )
  return {
    'none': bug(),
    'lies a third too rarely': bug(init=rarely),
    'a second answer': bug(step=twice),
  }


def _ranking(epsilon: float, delta: float) -> dict[str, Target]:
  """Bugs of ranking MF, seen in its noisy sums."""

  def bug(share, change=lambda hyper: hyper, unit: Unit = 'user', **more: Any):
    config = RankingMFConfig(
      **_COMMON,
      unit=unit,
      epsilon=epsilon,
      delta=delta,
      rounds=1,
      kept_items=3,
      popularity_power=0.3,
      lattice_bits=16,
      popularity_share=share,
    )
    sound = ranking_mf.ranking_mf(config)

    def init(key, data):
      state = sound.init(key, data)
      return state._replace(hyper=change(state.hyper))

    pair = library_pairs(unit, 'add_remove', config.scale)[0]
    system = sound._replace(init=init, **more)
    return Target('planted', '', system, pair, 'known', delta, view='sums')

  def quieter(name: str, factor: float):
    def change(hyper):
      own = getattr(hyper, name)
      return hyper._replace(**{name: own._replace(std=own.std * factor)})

    return change

  counts, factors = 0.98, 0.02
  return {
    'none': bug(counts),
    'noise 30% too small': bug(counts, quieter('counts', 0.7)),
    # The step for interactions divides by no norm.
    'profiles not shortened': bug(counts, step=ranking_mf.Step(False)),
    'projections not shortened': bug(factors, step=_long_projections),
    'no noise on factors': bug(factors, quieter('sums', 1e-3), 'rating'),
  }


def _long_projections(key, state, data):
  """A step of ranking MF with projections of norm 8."""

  def later():
    own, at = state.known, state.hyper.sums
    sent = 8 * ranking_mf.sent_by_users(own, state.hyper, data, True)
    sums = item_sums(
      data.by_item, own.scale, sent, state.hyper.counted, at.spacing
    )
    at = at._replace(std=at.std[0])
    (draws,) = noise.draws(key, [sums.shape])
    known = ranking_mf.factored(own, at.add(sums, draws) / at.std)
    return state._replace(known=known, done=state.done + 1)

  first = lambda: ranking_mf.Step(True)(key, state, data)
  return jax.lax.cond(state.done == 0, first, later)


def _levels(epsilon: float) -> dict[str, Target]:
  """A bug of power MF, seen in how users differ in level: of pure epsilon."""
  delta = 1e-12
  config = PowerMFConfig(
    **{**_COMMON, 'rank': 0}, epsilon=epsilon, delta=delta, level_share=0.5
  )
  sound = power_mf.power_mf(config)
  # The only one whose rating is not its user's only one.
  pair = library_pairs('rating', 'add_remove', config.scale)[-1]

  def as_of_counts(key, data):
    state = sound.init(key, data)
    coins = geometric.coin_words(law(config.level_share * epsilon))
    hyper = state.hyper._replace(level_coins=(coins, coins))
    return state._replace(hyper=hyper)

  bug = lambda **more: Target(
    'planted', '', sound._replace(**more), pair, 'known', delta, view='levels'
  )
  return {
    'none': bug(),
    'noise as if a rating moved them by 1': bug(init=as_of_counts),
  }


def _moments(epsilon: float, delta: float) -> dict[str, Target]:
  """A bug of moments by rating, where means are all that is asked for."""
  config = MomentsConfig(
    **_COMMON,
    unit='rating',
    epsilon=epsilon,
    delta=delta,
    means_share=0.02,
    pairs_from=1e6,
  )
  sound = moments.moments(config)
  pair = library_pairs('rating', 'add_remove', config.scale)[0]

  def quieter(key, data):
    state = sound.init(key, data)
    own = state.hyper.ratings
    hyper = state.hyper._replace(ratings=own._replace(std=own.std * 0.5))
    return state._replace(hyper=hyper)

  bug = lambda **more: Target(
    'planted', '', sound._replace(**more), pair, 'known', delta, view='sums'
  )
  return {'none': bug(), 'half of the noise': bug(init=quieter)}


def _gaussian(epsilon: float, delta: float) -> dict[str, Target]:
  """Bugs of Gaussian MF."""
  common: dict[str, Any] = {
    'variant': 'sound',
    'rank': 1,
    'init': 'unit',
    'steps': 2,
    'step_size': 0.001,
    # Aligned factors then predict the middle of the scale.
    'offset': 2.0,
    'epsilon': epsilon,
    'delta': delta,
  }

  def config(relation: Relation, scale=(1.0, 5.0), **settings: Any):
    return GaussianMFConfig(
      relation=relation, scale=scale, **{**common, **settings}
    )

  def bug(config: GaussianMFConfig, system: System) -> Target:
    system = system._replace(guarantee=plan(config).guarantee)
    pair = library_pairs('rating', config.relation, config.scale)[0]
    return Target('planted', '', system, pair, 'aligned', delta)

  add_remove = config('add_remove')
  replace = config('replace')
  # With equal noise on both sides what a rating adds to aligned factors is
  # the same, too, and cancels where the noise does.
  uneven = config('add_remove', user_share=0.8)
  narrow = config(
    'add_remove', scale=(3.0, 3.5), offset=0.0, residual_bound=4.0
  )
  return {
    'none': bug(add_remove, gaussian_mf.gaussian_mf(add_remove)),
    'noise 30% too small': bug(add_remove, _scaled(add_remove, 0.7)),
    'clip forgotten': bug(replace, _unclipped(replace)),
    'noise key reused': bug(uneven, _one_key(uneven)),
    # What a value can change, 0.5, where what a rating adds is up to 4.
    'sensitivity of value change for removal': bug(
      narrow,
      _scaled(
        narrow,
        sensitivity(dataclasses.replace(narrow, relation='replace'))
        / sensitivity(narrow),
      ),
    ),
    'one statistic without noise': bug(add_remove, _quiet_items(add_remove)),
  }


def _quiet_items(config: GaussianMFConfig) -> System:
  """The system without noise on its items."""
  system = gaussian_mf.gaussian_mf(config)

  def init(key, data):
    state = system.init(key, data)
    noise = state.hyper.noise
    quiet = noise.item._replace(std=jnp.zeros_like(noise.item.std))
    hyper = state.hyper._replace(noise=noise._replace(item=quiet))
    return state._replace(hyper=hyper)

  return system._replace(init=init)


def _scaled(config: GaussianMFConfig, factor: float) -> System:
  spent: Any = plan(config).guarantee.event
  smaller = dataclasses.replace(
    config, epsilon=None, noise_multiplier=spent.noise_multiplier * factor
  )
  return gaussian_mf.gaussian_mf(smaller)


def _unclipped(config: GaussianMFConfig) -> System:
  """Residuals of any size, with the noise of residuals up to the bound."""
  wide = dataclasses.replace(config, residual_bound=8.0)
  spent: Any = plan(config).guarantee.event
  multiplier = spent.noise_multiplier * sensitivity(config) / sensitivity(wide)
  return gaussian_mf.gaussian_mf(
    dataclasses.replace(wide, epsilon=None, noise_multiplier=multiplier)
  )


def _one_key(config: GaussianMFConfig) -> System:
  """The noise of the items is that of the users, drawn again."""

  def step(key, state, data):
    hyper = state.hyper
    counts = gaussian_mf.exact_gradients(data, state.factors, hyper)
    user, item = (
      own.add(side, noise.draws(key, [side.shape])[0])
      for own, side in zip(hyper.noise, counts, strict=True)
    )
    return gaussian_mf._update(SGD, state, user, item)

  return gaussian_mf.gaussian_mf(config)._replace(step=step)
