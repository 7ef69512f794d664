"""The settings of the untrusted recommender, and what they are worth."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple, cast

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.shares import (
  MAX_SHARE_BITS,
  largest_move,
  move_epsilon,
)
from dpmf_jax.plans import assumptions
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec, plan_by_rank
from dpmf_jax.types import Guarantee, Relation

View = Literal['public', 'recommender', 'third_party']
Attendance = Literal['static', 'dynamic']

# Products of a feature (2^8), another and a count stay below 2^31.
FEATURE_BITS = 8
_MAX_COUNT_SIZE = 2**15 - 1
_MAX_LABEL_SIZE = 2**22


@declare.config
class UntrustedPMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: paper: rounds of gradients with fixed noise, with the claimed
      epsilon. sound: one round of sums with shares of noise, proved.
    colluders: sound: c, how many users may tell their shares to the
      recommender, the third party or whoever sees what is published before the
      guarantee fails. A node of a deployment counts as all of its users.
    dropouts: sound: d, how many reports may not arrive before the round has to
      be done again. A node that drops out takes all of its users with it.
    view: What `release` gives: public, what everybody gets; or all that the
      recommender or the third party sees, for the auditor.
    attendance: paper: whether the same users are online in all rounds
      (scenario 2 or 3).
    online: paper: part of the users who are in a round; by default all static
      ones, and half of dynamic ones.
    round_noise: paper: standard deviation of the noise that a round has of its
      own, the paper's rho, which it does not define; 0 leaves it out.
    rounds: Number of rounds.
    residual_bound: paper: gradients of a rating are clipped to twice that.
    count_scale: Weight of the matrix A against the vector b in what is noised
      (sound, add_remove).
    noise_bits: sound: B of the shares of noise: sums are counted in units of
      about 2^-B / epsilon of what a rating can add.
    prior_variance: Of an item's vector around the common one (sound).
  """

  variant: Literal['paper', 'sound'] = declare.setting(flag=False)
  relation: Relation = declare.relation()
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon()
  delta: float = declare.pure_delta(default=0.0)
  colluders: int = declare.setting(default=0)
  dropouts: int = declare.setting(default=0)
  view: View = declare.setting(default='public', flag=False)
  attendance: Attendance = declare.setting(default='static')
  online: float | None = declare.setting(default=None, above=0, maximum=1)
  round_noise: float = declare.setting(default=0.0, minimum=0)
  rank: int = declare.rank(default=20)
  ridge: float = declare.ridge(default=0.01)
  rounds: int = declare.setting(default=50, minimum=1)
  step_size: float = declare.step_size(default=25.0)
  residual_bound: float = declare.setting(default=8.0, above=0)
  count_scale: float = declare.setting(default=1.0, above=0)
  noise_bits: int = declare.setting(
    default=12, minimum=1, maximum=MAX_SHARE_BITS
  )
  prior_variance: float = declare.setting(default=0.35, above=0)
  bias_ridge: float = declare.own_ridge(default=5.0, what='biases')
  vector_ridge: float = declare.own_ridge(default=8.0, what='vectors')

  def check(self):
    if self.variant == 'sound' and self.attendance != 'static':
      raise ValueError(
        f"attendance={self.attendance!r} is for variant='paper': there is one "
        "round with variant='sound', and dropouts= says who may be missing"
      )
    if self.online is None:
      part = 1.0 if self.attendance == 'static' else 0.5
      object.__setattr__(self, 'online', part)
    if self.attendance == 'static' and self.online != 1:
      raise ValueError(
        f"online={self.online} must be 1 for attendance='static': whoever is "
        'not there leaves a mask in the sum'
      )
    if self.variant == 'paper':
      if self.relation != 'replace':
        raise ValueError(
          "Hua et al. claim nothing for relation='add_remove'; use 'replace'"
        )
    else:
      sizes_of(self)

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


class Sizes(NamedTuple):
  """The largest integers that the parts of a rating can add (sound)."""

  counts: int  # A of features of L1 norm 1, in L1 norm over its triangle
  labels: int  # b of the largest label


def sizes_of(config: UntrustedPMFConfig) -> Sizes:
  """What a rating may add so that epsilon holds.

  Privacy: 'add_remove' moves (A, b) of one item by at most count + label in
  L1 norm, and 'replace' b alone by twice label; A then has no noise. Both are
  at most `largest_move(epsilon)`.
  """
  most = largest_move(config.epsilon, config.noise_bits)
  if config.relation == 'replace':
    label = most // 2
    count = min(label, _MAX_COUNT_SIZE)
  else:
    part = config.label_bound / (config.label_bound + config.count_scale)
    label = int(most * part)
    count = most - label
  fits = count <= _MAX_COUNT_SIZE and label <= _MAX_LABEL_SIZE
  if min(count, label) < 1 or not fits:
    fewer = 'more' if fits else 'a smaller epsilon, or fewer'
    raise ValueError(
      f'noise_bits={config.noise_bits} makes {count} units of counts and '
      f'{label} of labels at epsilon={config.epsilon}; use {fewer} bits'
    )
  return Sizes(count, label)


def rating_move(config: UntrustedPMFConfig) -> int:
  """How far one rating moves what is noised, in L1 norm (sound)."""
  sizes = sizes_of(config)
  if config.relation == 'replace':
    return 2 * sizes.labels
  return sizes.counts + sizes.labels


def rating_loss(
  config: UntrustedPMFConfig, *, num_users: int, known: int
) -> float:
  """The largest loss of one rating to who knows or misses `known` shares.

  Of all that the recommender sees, with a constant feature (sound). Up to
  c + d shares that is what is stated, and more with one more.
  """
  sizes = sizes_of(config)
  return accounting.share_loss(
    (2 * sizes.labels,) if config.relation == 'replace' else sizes,
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
      mechanism=f'{config.rounds} rounds of gradients of {config.attendance} '
      'users, with Laplace noise per coordinate of scale '
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
    f'one item by at most {rating_move(config)} units in L1 norm',
    event=accounting.Pure(move_epsilon(rating_move(config), config.noise_bits)),
  )


@plan_by_rank
def plan(
  config: UntrustedPMFConfig, rank: int, largest_node: int | None = None
) -> Plan:
  """What is stated of the simulator, with features of that rank.

  With `largest_node` it is that of a deployment, whose noise is in shares.
  """
  stated = guarantee(config, largest_node)
  if config.variant == 'paper':
    scale = share_scale(config)
    return Plan(stated, config.rounds, {'gradients': scale})
  noise = {'sums': 2.0**config.noise_bits}, {'sums': rating_move(config)}
  if largest_node is not None:
    return Plan(stated, 1, *noise)
  # The simulator's noise is within 1e-17 of its law on each coordinate.
  chance = rank * (rank + 3) // 2 * 1e-17
  declare.check_max_epsilon(config, math.log(tails.UNCOVERED / chance) - 1e-3)
  ends = (1 + math.exp(config.epsilon)) * chance
  declare.check_min_delta(config, ends)
  event = cast(accounting.Pure, stated.event)
  event = dataclasses.replace(event, uncovered=ends)
  return Plan(dataclasses.replace(stated, event=event), 1, *noise)


_SEED = (1, (32,))


def message_bytes(*arrays: tuple[int, tuple[int, ...]]) -> int:
  """Bytes of a message with these arrays: (bytes of a value, shape) of each.

  As `federated.messages` writes it.
  """
  return 16 + sum(
    2 + 4 * len(shape) + size * math.prod(shape) for size, shape in arrays
  )


def round_bytes(
  *, rank: int, num_items: int, users: str, masks: str = 'sent'
) -> dict[str, int]:
  """Bytes of one user's messages in a round of gradients, as serialised.

  Args:
    rank: D.
    num_items: how many items the user rated.
    users: 'static' or 'dynamic'.
    masks: 'sent', or 'seed' where a seed is sent in their place.
  """
  words = (4, (num_items, rank))
  pieces = [words] if users == 'dynamic' else []
  up = message_bytes(words)
  down = message_bytes(words, words if masks == 'sent' else _SEED, *pieces)
  return {
    'up': up,
    'down': down,
    'round': up + down,
    'setup_down': message_bytes((4, (num_items,)), words),
  }


def sum_bytes(num_items: int) -> dict[str, int]:
  """Bytes of one user's messages in the sound round, as serialised."""
  up = message_bytes((4, (num_items, 2)))
  down = message_bytes(_SEED) + message_bytes((4, (num_items, 1)))
  return {'up': up, 'down': down, 'round': up + down}


def traffic(
  config: UntrustedPMFConfig,
  *,
  num_users: int,
  num_items: int,
  num_ratings: int,
) -> dict[str, float]:
  """Bytes up and down of the mean user in a round.

  A user reports on all items (sound), or on those they rated (paper).
  """
  if config.variant == 'sound':
    sizes = sum_bytes(num_items)
  else:
    # Sizes are linear in the number of ratings.
    part, few = math.modf(num_ratings / num_users)
    low, high = (
      round_bytes(rank=config.rank, num_items=number, users=config.attendance)
      for number in (int(few), int(few) + 1)
    )
    sizes = {k: round(low[k] + part * (high[k] - low[k]), 1) for k in low}
  return {f'bytes_{way}': float(size) for way, size in sizes.items()}


_PURE = {'scale': (1.0, 5.0), 'delta': 0.0}
# What each party sees, with and without users who tell their shares.
_SOUND: tuple[dict[str, Any], ...] = (
  {'view': 'public', 'epsilon': 1.0, 'colluders': 0},
  {'view': 'recommender', 'epsilon': 4.0, 'colluders': 0},
  {'view': 'recommender', 'epsilon': 1.0, 'colluders': 2},
  {'view': 'third_party', 'epsilon': 1.0, 'colluders': 2},
  {'view': 'recommender', 'epsilon': 1.0, 'relation': 'replace'},
)
# Steps that carry a rating into its user's vector, and so into the next round.
_ROUNDS = {**_PURE, 'epsilon': 1.0, 'rank': 1}
_TWO = {**_ROUNDS, 'view': 'recommender', 'rounds': 2, 'step_size': 0.2}
_SIX = {**_ROUNDS, 'rounds': 6, 'step_size': 1.0}

SPEC = Spec(
  name='untrusted_pmf',
  help='MF by secure sums, for a recommender that is not trusted.',
  config=UntrustedPMFConfig,
  plan=plan,
  variants={
    # One: a user who looks at the release and knows their own share.
    'sound': {
      'variant': 'sound',
      'relation': 'add_remove',
      'colluders': 1,
    },
    'paper': PAPER,
  },
  cases={
    'sound': tuple(
      Case({**_PURE, 'relation': 'add_remove', 'colluders': 0, **each}, 'known')
      for each in _SOUND
    ),
    # H is in the recommender's view, and drawn in each run; the start is known.
    'paper': (
      Case(_TWO, 'known'),
      Case({**_TWO, 'attendance': 'dynamic', 'online': 1.0}, 'known'),
      Case({**_SIX, 'view': 'third_party'}, 'known'),
      Case({**_SIX, 'view': 'public'}, 'known'),
    ),
  },
  traffic=traffic,
)
