"""The settings of the untrusted recommender, and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from dpmf_jax import accounting
from dpmf_jax.accounting.events import checked_count
from dpmf_jax.accounting.shares import (
  MAX_SHARE_BITS,
  largest_move,
  move_epsilon,
)
from dpmf_jax.plans import assumptions
from dpmf_jax.plans.settings import (
  relation_check,
  require,
  scale_check,
  variant_check,
)
from dpmf_jax.types import Guarantee, Relation

View = Literal['public', 'recommender', 'third_party']
Users = Literal['static', 'dynamic']

# Products of a feature (2^8), another and count units stay below 2^31.
FEATURE_BITS = 8
_MOST_COUNT_UNITS = 2**15 - 1
_MOST_LABEL_UNITS = 2**22


@dataclass(frozen=True, kw_only=True)
class UntrustedPMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: 'paper' (rounds of gradients with fixed noise, with the claimed
      epsilon) or 'sound' (one round of sums with shares of noise, proved).
    relation: 'replace' or 'add_remove'. The paper has only 'replace'.
    scale: (lowest, highest) possible rating.
    epsilon: of everything that any party sees; pure.
    delta: at which the certificate states epsilon; the protocol needs none,
      the simulator next to none, and 0 is as much as it needs.
    colluders: c, how many users may tell their shares to the recommender, the
      third party or whoever sees what is published before the guarantee fails
      (sound). A node of a deployment counts as all of its users.
    dropouts: d, how many reports may not arrive before the round has to be
      done again (sound). A node that drops out takes all of its users with it.
    view: what `release` gives: 'public', what everybody gets; or all that the
      recommender or the third party sees, for the auditor.
    users: 'static' or 'dynamic' (paper): scenario 2 or 3.
    online: the part of the users who take part in a round (paper, dynamic).
    round_noise: standard deviation of the noise that a round has of its own,
      the paper's rho, which it does not define; 0 leaves it out (paper).
    rank, ridge, rounds, step_size: d, lambda, rounds of gradients, and the
      step, over the number of ratings, on sums (paper).
    residual_bound: gradients of a rating are clipped to twice that (paper).
    count_scale: weight of the matrix A against the vector b (sound,
      'add_remove').
    noise_bits: B of the noise of `mechanisms.shares` (sound): sums are counted
      in units of about 2^-B / epsilon of what a rating can add.
    prior_variance: of an item's vector around the common one (sound).
    bias_ridge, vector_ridge: of the fit that each user makes of their own
      bias and vector (sound). These stay with the user.
  """

  variant: Literal['paper', 'sound']
  relation: Relation
  scale: tuple[float, float]
  epsilon: float
  delta: float = 0.0
  colluders: int = 0
  dropouts: int = 0
  view: View = 'public'
  users: Users = 'static'
  online: float = 1.0
  round_noise: float = 0.0
  rank: int = 20
  ridge: float = 0.01
  rounds: int = 50
  step_size: float = 25.0
  residual_bound: float = 8.0
  count_scale: float = 1.0
  noise_bits: int = 12
  prior_variance: float = 0.35
  bias_ridge: float = 5.0
  vector_ridge: float = 8.0

  def __post_init__(self):
    for field in (
      'rank',
      'rounds',
      'colluders',
      'dropouts',
      'noise_bits',
    ):
      checked_count(field, getattr(self, field))
    positive = 'positive and finite'
    views = ('public', 'recommender', 'third_party')
    kinds = ('static', 'dynamic')
    require(
      self,
      variant=variant_check(self.variant),
      relation=relation_check(self.relation),
      scale=scale_check(self.scale),
      epsilon=(0 < self.epsilon < np.inf, positive),
      delta=(0 <= self.delta < 1, 'in [0, 1)'),
      view=(self.view in views, f'one of {views}'),
      users=(self.users in kinds, f'one of {kinds}'),
      online=(0 < self.online <= 1, 'in (0, 1]'),
      round_noise=(0 <= self.round_noise < np.inf, 'at least 0 and finite'),
      rank=(1 <= self.rank <= 1_000, 'in 1..1000'),
      ridge=(0 <= self.ridge < np.inf, 'at least 0 and finite'),
      rounds=(self.rounds >= 1, 'at least 1'),
      step_size=(0 < self.step_size < np.inf, positive),
      residual_bound=(0 < self.residual_bound < np.inf, positive),
      count_scale=(0 < self.count_scale < np.inf, positive),
      noise_bits=(
        1 <= self.noise_bits <= MAX_SHARE_BITS,
        f'in 1..{MAX_SHARE_BITS}',
      ),
      prior_variance=(0 < self.prior_variance < np.inf, positive),
      bias_ridge=(0 < self.bias_ridge < np.inf, positive),
      vector_ridge=(0 < self.vector_ridge < np.inf, positive),
    )
    if self.variant == 'paper':
      if self.relation != 'replace':
        raise ValueError(
          "Hua et al. claim nothing for relation='add_remove'; use 'replace'"
        )
      if self.users == 'static' and self.online != 1:
        raise ValueError(
          f"online={self.online} must be 1 for users='static': whoever is not "
          'there leaves a mask in the sum'
        )
    else:
      units_of(self)

  @property
  def center(self) -> float:
    """What labels are counted from (sound): the middle of the scale."""
    return sum(self.scale) / 2

  @property
  def unneeded(self) -> int:
    """How many shares of noise the guarantee does without: c + d."""
    return self.colluders + self.dropouts

  @property
  def label_bound(self) -> float:
    return (self.scale[1] - self.scale[0]) / 2


# Scenario 2 as published, for `UntrustedPMFConfig(**PAPER, ...)`.
PAPER: dict[str, Any] = {'variant': 'paper', 'relation': 'replace'}


class Units(NamedTuple):
  """How many units of noise the parts of a rating's term can have (sound)."""

  counts: int  # A of features of L1 norm 1, in L1 norm over its triangle
  labels: int  # b of the largest label


def units_of(config: UntrustedPMFConfig) -> Units:
  """What a rating may add so that epsilon holds.

  Privacy: 'add_remove' moves (A, b) of one item by at most count + label in
  L1 norm, and 'replace' b alone by twice label; A then has no noise. Both are
  at most `largest_move(epsilon)`.
  """
  most = largest_move(config.epsilon, config.noise_bits)
  if config.relation == 'replace':
    label = most // 2
    count = min(label, _MOST_COUNT_UNITS)
  else:
    part = config.label_bound / (config.label_bound + config.count_scale)
    label = int(most * part)
    count = most - label
  fits = count <= _MOST_COUNT_UNITS and label <= _MOST_LABEL_UNITS
  if min(count, label) < 1 or not fits:
    fewer = 'more' if fits else 'fewer'
    raise ValueError(
      f'noise_bits={config.noise_bits} makes {count} units of counts and '
      f'{label} of labels at epsilon={config.epsilon}; use {fewer} bits'
    )
  return Units(count, label)


def moved_units(config: UntrustedPMFConfig) -> int:
  """How far one rating moves what is noised, in L1 norm (sound)."""
  units = units_of(config)
  if config.relation == 'replace':
    return 2 * units.labels
  return units.counts + units.labels


def rating_loss(
  config: UntrustedPMFConfig, *, num_users: int, known: int
) -> float:
  """The largest loss of one rating to who knows or misses `known` shares.

  Of all that the recommender sees, with a constant feature (sound). Up to
  c + d shares that is what is stated, and more with one more.
  """
  units = units_of(config)
  return accounting.share_loss(
    (2 * units.labels,) if config.relation == 'replace' else units,
    bits=config.noise_bits,
    unknown=num_users - known,
    needed=num_users - config.unneeded,
  )


def share_scale(config: UntrustedPMFConfig) -> float:
  """b of the noise of a coordinate, as published."""
  return accounting.claimed_hua_share_scale(
    rating_range=config.scale[1] - config.scale[0],
    rank=config.rank,
    epsilon=config.epsilon,
  )


ADVERSARY = (
  'any one party, that knows every other rating, the id lists, the user '
  'features, the code and its settings: whoever sees what is published, '
  'together with up to {c} users; the recommender, together with up to {c} '
  'users; or the third party, together with up to {c} users; not the '
  'recommender together with the third party. Of all reports at most {d} are '
  'missing. A user knows their own share of the noise, and counts as one of '
  'the {c}; whoever runs the devices of several users counts as all of them'
)
NODES = (
  ': a node counts as all of its users, at most {n}, and is trusted with their '
  'ratings'
)
ASSUMPTIONS = (
  'All parties follow the protocol (honest but curious), and the recommender '
  'and the third party do not collude.',
  'The third party passes on one sum at most, of all rounds together; where '
  'the recommender lacks a mask it is fetched, and the round is not done '
  'again.',
  'Users and third party, and users and recommender, have private and '
  'authenticated channels: the recommender does not see single reports.',
  'Every user of the public list takes part with a share for every item, rated '
  'or not. If more than {d} reports do not arrive, the third party passes '
  'nothing on (secure_sum.aggregate). Whose do arrive does not depend on '
  'ratings; the recommender, which cannot read reports, may keep {d} back.',
  'A report is sent in one round. A round that is broken is done again under '
  'another number with new masks, and nothing of the broken one is passed on.',
  'Masks are one-time words from the operating system, or ChaCha20 streams, '
  'which are as good as random, and the shares come from `polya_shares`, whose '
  'sum has exactly the stated law.',
  assumptions.PUBLIC_FEATURES,
  assumptions.PUBLIC_IDS,
  assumptions.ONE_OF_DUPLICATES,
  assumptions.ONE_RELEASE,
  assumptions.SAME_FLOATS,
  assumptions.ONE_RATING,
)
SIMULATED = (
  'The simulator draws the sum of the shares, and masks, from a JAX key '
  '(Threefry, as good as random); the law of its noise is within 1e-17 of the '
  'exact one for each coordinate, and delta pays for that. Whoever holds its '
  'key, or runs it, is trusted. Timing and memory are not covered.'
)
DEPLOYED = (
  "Shares, masks and keys come from the operating systems of the parties' "
  'hosts, and the keys in the plan are those of the parties. Timing and memory '
  'are not covered.'
)
CLAIM = (
  'This is what the paper claims, not what is true: the recommender drew H and '
  'sees noise of known size, the noise of two rounds is the same and cancels, '
  'user factors are trained on the same ratings, and with dynamic users a '
  'round without somebody tells their gradient.',
  'Which user rated which item is known to the recommender and to the third '
  'party.',
)
SECRET = (
  'ratings',
  'user factors',
  'shares of noise',
  'masks',
  'single reports',
  'random key',
)
_SEEN = {
  'public': (),
  'recommender': ('sums that the recommender sees',),
  'third_party': ('masked reports that the third party sees',),
}


def guarantee(
  config: UntrustedPMFConfig, largest_node: int | None = None
) -> Guarantee:
  """What is stated of a run.

  Args:
    config: settings.
    largest_node: how many users the largest node of a deployment has (sound);
      None for the simulator, in which every user has a device.
  """
  released = ('item factors', 'offset', 'id lists', *_SEEN[config.view])
  if config.variant == 'paper':
    return Guarantee(
      status='claimed',
      unit='rating',
      relation='replace',
      adversary='the recommender or the third party, not both together',
      released=released,
      secret=SECRET,
      assumptions=CLAIM,
      mechanism=f'{config.rounds} rounds of gradients of {config.users} users, '
      'with Laplace noise per coordinate of scale '
      f'{share_scale(config):.6g}, drawn once in shares',
      event=accounting.ClaimedPure(config.epsilon),
    )
  adversary, extra = ADVERSARY, (SIMULATED,)
  if largest_node is not None:
    adversary, extra = ADVERSARY + NODES, (DEPLOYED,)
  if config.relation == 'replace':
    extra = (*extra, assumptions.PUBLIC_PAIRS)
  moved = 'b' if config.relation == 'replace' else '(A, b)'
  return Guarantee(
    status='proved',
    unit='rating',
    relation=config.relation,
    adversary=adversary.format(
      c=config.colluders, d=config.dropouts, n=largest_node
    ),
    released=released,
    secret=SECRET,
    assumptions=tuple(line.format(d=config.dropouts) for line in ASSUMPTIONS)
    + extra,
    mechanism=f'for each item one secure sum of {moved} of its normal '
    'equations against public user features, in integers, with two-sided '
    f'geometric noise of ratio 1 - 2^-{config.noise_bits} on each, made of '
    f'shares of all users but {config.unneeded}; one rating moves {moved} of '
    f'one item by at most {moved_units(config)} units in L1 norm',
    event=accounting.Pure(move_epsilon(moved_units(config), config.noise_bits)),
  )
