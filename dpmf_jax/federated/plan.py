"""The plan of a run: public facts that all of its parties are given."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dpmf_jax import files
from dpmf_jax.plans import SPECS
from dpmf_jax.ratings.ids import id_array

CONFIGS = {name: SPECS[name].config for name in ('sdmf', 'untrusted_pmf')}
RUN_BYTES = 16
# Senders that are no nodes.
RECOMMENDER = 2**32 - 1
AGGREGATOR = 2**32 - 2


class Node(NamedTuple):
  """The users of one node are first .. first + size - 1."""

  first: int
  size: int
  key: str = ''  # public, of its sealed messages; hexadecimal

  @property
  def users(self) -> np.ndarray:
    return np.arange(self.first, self.first + self.size, dtype=np.uint32)


def _require(config: object, **checks: tuple[bool, str]) -> None:
  """Raises ValueError for the first field whose check does not hold."""
  for field, (holds, bound) in checks.items():
    if not holds:
      raise ValueError(f'{field}={getattr(config, field)!r} must be {bound}')


@dataclass(frozen=True, kw_only=True)
class Plan:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    run: its number, drawn once; messages of another run are not accepted.
    system: 'sdmf', or 'untrusted_pmf': sound, or as published with no noise
      but users' shares.
    settings: of the system's config. SDMF needs `sent` and
      `likelihood_scale`, since nobody knows the number of ratings. For sums
      `colluders` are by default, and at least, the users of the largest node,
      which knows all of their shares of noise.
    item_ids: of all items, in order.
    nodes: who hosts which users, in order.
    aggregator_key: public, of the third party; hexadecimal.
    attempts: how often a node is asked in a round before it goes on without.
    seconds: how long an attempt waits for answers.
    least: how many nodes a round needs; with fewer the run stops.
  """

  run: str
  system: Literal['sdmf', 'untrusted_pmf']
  settings: dict[str, Any]
  item_ids: tuple[str, ...]
  nodes: tuple[Node, ...]
  aggregator_key: str = ''
  attempts: int = 5
  seconds: float = 60.0
  least: int = 1

  def __post_init__(self):
    firsts = np.cumsum([0] + [node.size for node in self.nodes])[:-1]
    _require(
      self,
      run=(len(bytes.fromhex(self.run)) == RUN_BYTES, f'{RUN_BYTES} bytes'),
      system=(self.system in CONFIGS, f'one of {sorted(CONFIGS)}'),
      item_ids=(len(set(self.item_ids)) == len(self.item_ids) > 0, 'distinct'),
      nodes=(
        len(self.nodes) > 0
        and all(node.size > 0 for node in self.nodes)
        and [node.first for node in self.nodes] == firsts.tolist(),
        'some, each with the users that follow those of the one before',
      ),
      attempts=(self.attempts >= 1, 'at least 1'),
      seconds=(0 < self.seconds < np.inf, 'positive and finite'),
      least=(1 <= self.least <= len(self.nodes), 'between 1 and all nodes'),
    )
    config = self.config
    if self.system == 'sdmf':
      if config.sent is None or config.likelihood_scale is None:
        raise ValueError('settings must have sent and likelihood_scale')
    elif self.sums:
      self._check_shares(config)
    elif config.round_noise:
      raise ValueError('settings must have round_noise=0')

  def _check_shares(self, config: Any) -> None:
    """Returns nothing; ValueError where a node knows more than is stated."""
    c, d, least = config.colluders, config.dropouts, self.largest_node
    if c < least:
      raise ValueError(
        f'colluders={c} must be at least {least}: a node knows the shares of '
        'noise of all of its users, and the largest has that many'
      )
    smallest = min(node.size for node in self.nodes)
    if 0 < d < smallest:
      raise ValueError(
        f'dropouts={d} leave room for no node, of which the smallest has '
        f'{smallest} users: use 0, or at least that many'
      )
    if c + d >= self.num_users:
      raise ValueError(
        f'colluders={c} and dropouts={d} must add up to below the '
        f'{self.num_users} users, or nobody else has a share of noise: use '
        'more nodes'
      )

  @property
  def sums(self) -> bool:
    """Whether it is the untrusted recommender's one round of sums."""
    return (
      self.system == 'untrusted_pmf' and self.settings.get('variant') == 'sound'
    )

  @functools.cached_property
  def config(self) -> Any:
    settings = dict(self.settings)
    settings['scale'] = tuple(settings['scale'])
    if self.sums:
      settings.setdefault('colluders', self.largest_node)
    return CONFIGS[self.system](**settings)

  @property
  def largest_node(self) -> int:
    """How many users it has: as many colluders."""
    return max(node.size for node in self.nodes)

  @property
  def run_words(self) -> np.ndarray:
    """The run as the first array of a message."""
    return np.frombuffer(bytes.fromhex(self.run), np.uint8)

  @property
  def num_users(self) -> int:
    return sum(node.size for node in self.nodes)

  @property
  def num_items(self) -> int:
    return len(self.item_ids)


def new_run() -> str:
  """A run's number."""
  return secrets.token_hex(RUN_BYTES)


def write_plan(path: str | Path, plan: Plan) -> None:
  fields = dataclasses.asdict(plan)
  fields['nodes'] = [node._asdict() for node in plan.nodes]
  files.write_json(path, fields)


def read_plan(path: str | Path) -> Plan:
  """The plan in a file; ValueError where it is none."""
  fields = files.read_json(path)
  try:
    nodes = tuple(_node(node) for node in fields.pop('nodes'))
    ids = tuple(id_array(fields.pop('item_ids'), 'item_ids').astype(str))
    return Plan(nodes=nodes, item_ids=tuple(map(str, ids)), **fields)
  except (TypeError, KeyError, AttributeError, ValueError) as error:
    raise ValueError(f'{path} is not a plan: {error}') from None


def _node(fields: dict[str, Any]) -> Node:
  node = Node(**fields)
  if not all(isinstance(n, int) and 0 <= n < 2**31 for n in node[:2]):
    raise ValueError(f'first={node.first!r} and size={node.size!r} of a node')
  if not isinstance(node.key, str):
    raise ValueError(f'key={node.key!r} of a node must be text')
  return node
