"""The settings of personalised objective perturbation, and what is stated.

Reference: Zhang et al., Personalized Differential Privacy for Probabilistic
Matrix Factorization, Algorithm 1 (the sample) and then 2, and Theorem 6.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from dpmf_jax import accounting
from dpmf_jax.plans import objective_pmf as objective
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import SOUND, Case, Plan, Spec, plan_by_rank
from dpmf_jax.types import Guarantee, Relation


@declare.config
class PersonalizedPMFConfig(objective.ObjectivePMFConfig):
  """Public facts about a run; nothing here may be computed from ratings.

  `epsilon` is t: of a rating of weight 1, or the sampling threshold; no rating
  has more. A public number, such as `accounting.personal_threshold` gives of a
  public distribution; the mean or maximum over the ratings there are would
  tell of them.

  Attributes:
    objective: paper: whose objective and noise.
    loss: sound: squared.
    method: How ratings get an epsilon below epsilon or threshold; the paper
      samples.
  """

  # Sampling proves nothing for changed values.
  relation: Relation = declare.relation('add_remove')
  objective: Literal['zhang', 'hua'] = declare.setting(
    default='zhang', choices=('zhang',)
  )
  # What covers the search for a minimum costs all ratings the same.
  loss: Literal['squared', 'huber'] = declare.setting(
    default='squared', choices=('squared',)
  )
  method: Literal['weights', 'sampling'] = declare.setting(default='weights')

  def check(self):
    super().check()
    if self.feature_share:
      raise ValueError(f'feature_share={self.feature_share!r} must be 0')
    if self.variant == 'paper' and self.method != 'sampling':
      raise ValueError("method='weights' is not in the paper; use 'sampling'")


PAPER: dict[str, Any] = {
  'variant': 'paper',
  'relation': 'add_remove',
  'method': 'sampling',
}
_EACH = (
  'Each rating has at most the epsilon that the specification gives it; what '
  'is stated is the most that any can have.',
  'The specification is public: it does not depend on what was rated, nor on '
  'values.',
)


@plan_by_rank
def plan(config: PersonalizedPMFConfig, rank: int) -> Plan:
  """As for one epsilon; what is stated is the largest of any rating."""
  base = objective.plan(config, rank)
  stated = _personal(config, base.guarantee, rank)
  return dataclasses.replace(base, guarantee=stated)


def _personal(
  config: PersonalizedPMFConfig, base: Guarantee, rank: int
) -> Guarantee:
  how = (
    f'each rating is weighted by its epsilon over {config.epsilon:g}'
    if config.method == 'weights'
    else 'each rating is kept with chance (e^epsilon - 1)/(e^t - 1)'
  )
  return dataclasses.replace(
    base,
    assumptions=base.assumptions + _EACH,
    mechanism=f'{how}; {base.mechanism}',
    # What amplifies or weighs is not known to be L2-Laplace any more.
    event=accounting.Pure(config.epsilon, 1, objective.uncovered(config, rank))
    if config.variant == 'sound'
    else accounting.ClaimedPure(config.epsilon),
  )


_CASE = {'scale': (1.0, 5.0), 'delta': 0.0, 'relation': 'add_remove'}

SPEC = Spec(
  name='personalized_pmf',
  help="Objective perturbation with each rating's own epsilon, of which it "
  'needs a specification.',
  config=PersonalizedPMFConfig,
  plan=plan,
  variants={'sound': SOUND, 'paper': PAPER},
  cases={
    'sound': tuple(
      Case(
        {**_CASE, 'epsilon': 4.0, 'method': method}, 'random', own_epsilon=own
      )
      for method in ('weights', 'sampling')
      for own in (1.0, 4.0)
    ),
    'paper': (
      Case(
        {**objective.PAPER_CASE, 'relation': 'add_remove', 'epsilon': 1.0},
        'random',
        own_epsilon=1.0,
      ),
    ),
  },
  takes_features=True,
  personalized=True,
)
