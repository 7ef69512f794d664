"""How each system and variant is attacked; a new one belongs here, too.

`auditing_test` fails for a variant that has no case, and for a relation
that its config allows and no case covers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dpmf_jax.auditing.sampling import Start
from dpmf_jax.systems import SYSTEMS, local_mf
from dpmf_jax.types import System


class Case(NamedTuple):
  """A system at settings at which an attack on a few ratings is strong.

  Attributes:
    settings: of its config, besides those of the variant.
    start: what is known of the initial state; see `sampling.sampler`.
    ranges: setting -> (lowest, highest), over which the search for worse
      cases looks, on a logarithmic scale; integers stay integers.
    own_epsilon: the epsilon that the specification gives each rating, for
      personalised systems; it is what is stated, then.
    view: (key, state, data) -> what the adversary sees, where that is more
      than the release.
  """

  settings: Mapping[str, Any]
  start: Start
  ranges: Mapping[str, tuple[float, float]] = {}
  own_epsilon: float | None = None
  view: Callable[..., Any] | None = None


# Few steps, rank 1 or 2, factors of norm 1, and an offset with which aligned
# factors predict the middle of the scale: then one rating moves a gradient by
# all of its sensitivity. Small step sizes keep it so for all steps.
_GAUSSIAN_MF = {
  'scale': (1.0, 5.0),
  'offset': 2.0,
  'delta': 1e-5,
  'init': 'unit',
  'step_size': 0.001,
}
_GAUSSIAN_MF_SOUND: tuple[tuple[dict[str, Any], Start], ...] = (
  ({'epsilon': 1.0, 'rank': 1, 'steps': 1}, 'aligned'),
  ({'epsilon': 4.0, 'rank': 2, 'steps': 3}, 'aligned'),
  ({'epsilon': 1.0, 'rank': 2, 'steps': 3, 'step_size': 1.0}, 'random'),
)
_GAUSSIAN_MF_RANGES = {'step_size': (1e-3, 1e4), 'steps': (1, 4)}

_PURE = {'scale': (1.0, 5.0), 'delta': 0.0}
# Features that are learned in few steps.
_GAUSSIAN_MF_STEPS = {
  'scale': (1.0, 5.0),
  'delta': 1e-5,
  'rank': 2,
  'feature_steps': 2,
}
# Few small steps: what the first stage learned is still in the items.
_PMF = {
  'scale': (1.0, 5.0),
  'delta': 0.0,
  'rank': 2,
  'step_size': 0.5,
  'pmf_steps': 12,
  'noise_steps': 1,
}

_LOCAL = {'unit': 'rating', 'relation': 'add_remove', 'rank': 0}
_STARS = (1.0, 2.0, 3.0, 4.0, 5.0)
# So small a norm that every user is clipped, and moves sums by all of it.
_LOCAL_USER = {
  'scale': (1.0, 5.0),
  'delta': 1e-5,
  'unit': 'user',
  'relation': 'add_remove',
  'clip_norm': 1.0,
}
# Few rounds: what is released is a mean of what few clients sent.
_SDCF = {'scale': (1.0, 5.0), 'rank': 2, 'steps': 2}
# A user with one rating reaches the bound on contributions, and vectors theirs.
_DPALS = {
  'scale': (1.0, 5.0),
  'delta': 1e-5,
  'contribution': 0.5,
  'clip_norm': 1e-3,
  'count_scale': 0.2,
}
_POWER_MF = {'scale': (1.0, 5.0), 'delta': 1e-5, 'relation': 'add_remove'}
# Little for means and biases, and much for the last release.
_LITTLE = {'mean_share': 0.02, 'bias_share': 0.02, 'last_weight': 10.0}

_POWER_MF_SOUND: tuple[tuple[dict[str, Any], Start], ...] = (
  ({'epsilon': 1.0, 'rank': 0}, 'known'),
  ({'epsilon': 4.0, 'rank': 0}, 'known'),
  # Nearly all for the item means; and a first or a last release of factors that
  # has as much as it can get.
  ({'epsilon': 4.0, 'rank': 1, 'rounds': 1, 'mean_share': 0.9}, 'known'),
  ({'epsilon': 4.0, 'rank': 1, 'rounds': 1, **_LITTLE}, 'aligned'),
  ({'epsilon': 1.0, 'rank': 2, 'rounds': 2}, 'random'),
)
# What each party sees, with and without users who tell their shares.
_UNTRUSTED: tuple[tuple[str, dict[str, Any]], ...] = (
  ('add_remove', {'view': 'public', 'epsilon': 1.0, 'colluders': 0}),
  ('add_remove', {'view': 'recommender', 'epsilon': 4.0, 'colluders': 0}),
  ('add_remove', {'view': 'recommender', 'epsilon': 1.0, 'colluders': 2}),
  ('add_remove', {'view': 'third_party', 'epsilon': 1.0, 'colluders': 2}),
  ('replace', {'view': 'recommender', 'epsilon': 1.0, 'colluders': 0}),
)
# Steps that carry a rating into its user's vector, and so into the next round.
_ROUNDS = {**_PURE, 'epsilon': 1.0, 'rank': 1}
_TWO_ROUNDS = {**_ROUNDS, 'view': 'recommender', 'rounds': 2, 'step_size': 0.2}
_SIX_ROUNDS = {**_ROUNDS, 'rounds': 6, 'step_size': 1.0}

CASES: dict[tuple[str, str], tuple[Case, ...]] = {
  ('gaussian_mf', 'sound'): tuple(
    Case(
      {**_GAUSSIAN_MF, 'relation': relation, **settings},
      start,
      _GAUSSIAN_MF_RANGES,
    )
    for relation in ('replace', 'add_remove')
    for settings, start in _GAUSSIAN_MF_SOUND
  ),
  # A step size that carries what one step put into the items into the users.
  ('gaussian_mf', 'paper'): (
    Case(
      {
        'scale': (0.0, 4.0),
        'delta': 1e-5,
        'epsilon': 0.33,
        'rank': 1,
        'steps': 2,
        'step_size': 1000.0,
      },
      'random',
      _GAUSSIAN_MF_RANGES,
    ),
  ),
  ('objective_pmf', 'sound'): tuple(
    Case({**_PURE, 'relation': relation, 'epsilon': epsilon}, 'known')
    for relation in ('replace', 'add_remove')
    for epsilon in (1.0, 4.0)
  )
  + tuple(
    Case(
      {
        **_PURE,
        'relation': 'add_remove',
        'epsilon': epsilon,
        'loss': 'huber',
        # Where no residual is clipped, and where most are.
        'residual_bound': bound,
      },
      'known',
    )
    for epsilon, bound in ((1.0, 4.0), (1.0, 0.5), (4.0, 4.0))
  )
  + tuple(
    Case(
      {
        **_GAUSSIAN_MF_STEPS,
        'relation': relation,
        'epsilon': 2.0,
        'feature_share': 0.5,
      },
      'random',
    )
    for relation in ('replace', 'add_remove')
  ),
  ('objective_pmf', 'paper'): tuple(
    Case({**_PMF, 'relation': relation, 'epsilon': 1.0}, 'random')
    for relation in ('replace', 'add_remove')
  ),
  ('personalized_pmf', 'sound'): tuple(
    Case(
      {**_PURE, 'relation': 'add_remove', 'epsilon': 4.0, 'method': method},
      'random',
      own_epsilon=own_epsilon,
    )
    for method in ('weights', 'sampling')
    for own_epsilon in (1.0, 4.0)
  ),
  ('personalized_pmf', 'paper'): (
    Case(
      {**_PMF, 'relation': 'add_remove', 'epsilon': 1.0},
      'random',
      own_epsilon=1.0,
    ),
  ),
  # The server sees the answers, or the noisy sums, themselves. Without factors
  # the release is made of few numbers, which a discriminant can learn.
  ('local_mf', 'sound'): (
    *(
      Case({**_PURE, **_LOCAL, **settings}, 'known', view=view)
      for settings, view in (
        ({'epsilon': 1.0}, local_mf.transcript),
        ({'epsilon': 1.0, 'relation': 'replace'}, local_mf.transcript),
        (
          {'epsilon': 2.0, 'levels': (1.0, 5.0), 'rounding': 'stochastic'},
          local_mf.transcript,
        ),
        ({'epsilon': 4.0, 'levels': _STARS}, local_mf.transcript),
        ({'epsilon': 1.0}, None),
      )
    ),
    *(
      Case({**_LOCAL_USER, 'epsilon': epsilon}, 'known', view=view)
      for epsilon, view in (
        (1.0, local_mf.transcript),
        (4.0, local_mf.transcript),
        (1.0, None),
      )
    ),
  ),
  # The items alone; what clients send, which says more, is not released here.
  ('sdmf', 'paper'): (
    Case({**_SDCF, 'epsilon': 1.0, 'epsilon_value': 1.0}, 'random'),
  ),
  ('sdbpr', 'paper'): (Case({**_SDCF, 'epsilon': 1.0}, 'random'),),
  ('sdbpr', 'none'): (Case(_SDCF, 'random'),),
  ('sdfm', 'paper'): (
    Case({**_SDCF, 'epsilon': 1.0, 'epsilon_value': 1.0}, 'random'),
  ),
  ('sdfm', 'none'): (Case(_SDCF, 'random'),),
  ('langevin', 'paper'): (Case({**_SDCF, 'epsilon': 1.0}, 'random'),),
  ('langevin', 'none'): (Case(_SDCF, 'random'),),
  ('dpals', 'sound'): tuple(
    Case({**_DPALS, **settings}, 'known')
    for settings in (
      {'epsilon': 1.0, 'rank': 0, 'steps': 1},
      {'epsilon': 4.0, 'rank': 0, 'steps': 2},
      {'epsilon': 1.0, 'rank': 1, 'steps': 2},
      {'epsilon': 4.0, 'rank': 2, 'steps': 2},
    )
  ),
  ('als', 'none'): (
    Case({'scale': (1.0, 5.0), 'rank': 1, 'steps': 2}, 'random'),
  ),
  ('power_mf', 'sound'): tuple(
    Case({**_POWER_MF, **settings}, start)
    for settings, start in _POWER_MF_SOUND
  ),
  ('untrusted_pmf', 'sound'): tuple(
    Case({**_PURE, 'relation': relation, **settings}, 'known')
    for relation, settings in _UNTRUSTED
  ),
  # H is in the recommender's view, and drawn in each run; the start is known.
  ('untrusted_pmf', 'paper'): (
    Case(_TWO_ROUNDS, 'known'),
    Case({**_TWO_ROUNDS, 'users': 'dynamic'}, 'known'),
    Case({**_SIX_ROUNDS, 'view': 'third_party'}, 'known'),
    Case({**_SIX_ROUNDS, 'view': 'public'}, 'known'),
  ),
  ('nonprivate', 'none'): (
    Case({'scale': (1.0, 5.0), 'rank': 1, 'steps': 2}, 'random'),
  ),
}


def build(system: str, variant: str, settings: Mapping[str, Any]) -> System:
  """The system of a case."""
  entry = SYSTEMS[system]
  return entry.build(entry.config(**{**entry.variants[variant], **settings}))


def scale_of(case: Case) -> tuple[float, float]:
  low, high = case.settings['scale']
  return low, high
