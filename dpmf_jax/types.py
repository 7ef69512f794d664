"""The few types that every room of the library shares.

Nothing here imports JAX when it runs, so that the accountant, which needs
`Guarantee`, can be used where there is no JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
  import optax

  from dpmf_jax.accounting.events import Event

  Optimizer = optax.GradientTransformation
else:
  Optimizer = Any

Status = Literal['proved', 'stated', 'claimed', 'none']
Unit = Literal['rating', 'user']
Relation = Literal['replace', 'add_remove']


class Factors(NamedTuple):
  """User and item factors; a side that must not be released is None."""

  user: Any  # jax.Array [U, D]
  item: Any  # jax.Array [I, D]


class Fit(NamedTuple):
  """How a user is fitted to released items: a ridge regression.

  A user's row x minimises the sum of (offset + <x, q> - r)^2 over their own
  ratings plus that of ridge_c (x_c - prior_c)^2 over columns c.

  Privacy: both are public, or computed from what is released.
  """

  prior: Any  # [D], what a user without ratings gets
  ridge: Any  # [D], positive; infinity holds a column at its prior


class Counted(NamedTuple):
  """How much an interaction counts: least + slope * (rating - low), up to 1."""

  low: Any  # [], the lowest rating
  least: Any  # [], what it counts
  slope: Any  # []


class Sum(NamedTuple):
  """How a user is fitted to released items of a ranking: a sum.

  A user's row is prior + the sum of x_i weight_i q_i over their own items i,
  with x_i what the interaction counts. The first column of items is their
  popularity; scores order items and have no scale.

  Privacy: all are public, or computed from what is released.
  """

  prior: Any  # [D], what a user without interactions gets
  weight: Any  # [I], not negative; or [I, D] where columns differ
  counted: Counted


class Release(NamedTuple):
  """All that leaves the trusted curator, and nothing else.

  A prediction is `offset + <user, item>`. `fit` is for users who are not
  released, old and new; None where they are. `number` says about how many
  ratings an item has, for lists, where the system releases that with noise.
  """

  factors: Factors
  offset: Any  # [] public, or released with noise
  fit: Fit | Sum | None = None
  number: Any = None  # [I], positive


class Tails(NamedTuple):
  """How Gaussian draws, which end, are moved: for what groups are promised.

  Attributes:
    noise_multiplier: noise over how far a unit moves all draws of a step
      together, of the step where it is smallest.
    draws: how many draws of a step a unit moves, at most.
    steps: how many steps have draws.
  """

  noise_multiplier: float
  draws: int
  steps: int


@dataclass(frozen=True, kw_only=True)
class Guarantee:
  """A privacy statement about what a system runs and releases.

  Attributes:
    status: 'proved' (by us, for the code as it runs), 'stated' (by whoever
      wrote a system that is not ours; a certificate says this also where such
      a system says 'proved'), 'claimed' (the paper says so, by the paper's
      formula) or 'none' (not private).
    unit: what one neighbouring step changes: a 'rating' or a whole 'user'.
    relation: 'replace' (its value changes, who rated what is public) or
      'add_remove' (it is there or not).
    adversary: who is defended against, and what they may know.
    released: what the guarantee covers.
    secret: what must stay with the curator.
    assumptions: everything the proof leans on, one sentence each.
    mechanism: what is run and with how much noise, in a sentence.
    event: the composed mechanism, for `accounting.epsilon`; None iff 'none'.
    tails: of its Gaussian draws; None where there are none, or it is not known
      what a unit moves.
  """

  status: Status
  unit: Unit
  relation: Relation
  adversary: str
  released: tuple[str, ...]
  secret: tuple[str, ...]
  assumptions: tuple[str, ...]
  mechanism: str
  event: Event | None
  tails: Tails | None = None

  def __post_init__(self):
    for field in ('released', 'secret', 'assumptions'):
      value = getattr(self, field)
      # In a string, 'user factors' would be found in a sentence about them.
      if not isinstance(value, tuple) or not all(
        isinstance(each, str) for each in value
      ):
        raise ValueError(f'{field}={value!r} must be a tuple of strings')
    if both := set(self.released) & set(self.secret):
      raise ValueError(f'{sorted(both)} cannot be both released and secret')


def released(model: Release, covered: Sequence[str]) -> Release:
  """What may leave the curator: the model less its secret sides.

  Args:
    model: of `System.model`, with both sides.
    covered: `Guarantee.released`, which names the sides that it covers.

  Offset, fit and number are always part of it: public, or with noise.
  """
  sides = zip(Factors._fields, model.factors, strict=True)
  return model._replace(
    factors=Factors(
      *(rows if f'{side} factors' in covered else None for side, rows in sides)
    )
  )


class Personal(NamedTuple):
  """What a personalised system says of ratings' own epsilons.

  Attributes:
    statement: (public distribution | None) -> a certificate's `personal`.
    accounted: epsilons that ratings ask for -> those that they have.
  """

  statement: Callable[..., dict[str, Any]]
  accounted: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Kinds:
  """A step of one of several kinds. `fit` compiles those that are run.

  Attributes:
    step: (key, state, data) -> State, one program with all kinds.
    which: state -> [] int32, the kind that is next.
    each: the kinds, (key, state, data) -> State.

  Privacy: `which` must be a function of what the guarantee covers, as how long
  a run takes tells of it.
  """

  step: Callable[..., Any]
  which: Callable[..., Any]
  each: tuple[Callable[..., Any], ...]

  def __call__(self, key: Any, state: Any, data: Any) -> Any:
    return self.step(key, state, data)


class System(NamedTuple):
  """A recommender as pure functions, with what can be said of its privacy.

  Attributes:
    init: (key, data) -> State.
    step: (key, state, data) -> State; pure, un-jitted, scannable and
      vmappable. Equal static settings give the identical function object, so
      that another noise level or step size does not compile again. `Kinds`
      where the program would be large and a run needs a part of it.
    model: (state, data) -> Release with both sides, for the curator's own
      metrics and serving; may hold more than the guarantee covers.
    steps: how many times `step` runs. Fixed before the data is seen; the
      guarantee covers exactly this many.
    guarantee: the statement that holds for `release` after `steps` steps.
    views: what others than readers of the release see, by name, for the
      auditor: (key, state, data) -> arrays.
    personal: where each rating has an epsilon of its own.
    scale: of the ratings that it is for; None for any, where nothing is
      clipped to it and no proof needs it.
    users_apart: whether steps compute what they do for a user from that user's
      rows and from what all have, and add up nothing over users but integers,
      or floats of users who are the same everywhere (`homes.some_rows`):
      tables of users, which are named `user` in the state, can then be spread
      over devices without changing a bit.
    items_apart: the same of items. Where it is not so, tables of items that are
      to be spread are that between programs only.
  """

  init: Callable[..., Any]
  step: Callable[..., Any]
  model: Callable[..., Release]
  steps: int
  guarantee: Guarantee
  views: Mapping[str, Callable[..., Any]] = {}
  personal: Personal | None = None
  scale: tuple[float, float] | None = None
  users_apart: bool = False
  items_apart: bool = False

  def release(self, state: Any, data: Any) -> Release:
    """What may leave the curator of this state."""
    return released(self.model(state, data), self.guarantee.released)
