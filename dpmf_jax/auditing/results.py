"""What audits found, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dpmf_jax.certificates.rendering import aligned


class Finding(NamedTuple):
  """What was measured, beside what is stated."""

  system: str
  variant: str
  status: str  # of the guarantee; see `types.Guarantee`
  unit: str
  relation: str
  pair: str
  start: str
  steps: int
  stated: float | None  # epsilon at delta, claimed or proved
  delta: float
  lower_bound: float
  rule: str  # binomial, or gaussian if a Gaussian curve is stated
  statistic: str  # that gave it
  runs: int  # on each data set
  confidence: float
  verdict: str  # refuted, not refuted, or nothing stated

  @property
  def refuted(self) -> bool:
    return self.verdict == 'refuted'


@dataclass(frozen=True, repr=False)
class Audit:
  """What all the attacks on a system found.

  Attributes:
    findings: one for each attack.
    confidence: that all their lower bounds hold together.
  """

  findings: tuple[Finding, ...]
  confidence: float

  @property
  def worst(self) -> Finding:
    """The finding that is closest to, or farthest above, what is stated."""
    return worst(self.findings)

  @property
  def stated(self) -> float | None:
    """The epsilon that the worst finding is about; None if there is none."""
    return self.worst.stated

  @property
  def delta(self) -> float:
    """At which that epsilon is."""
    return self.worst.delta

  @property
  def lower_bound(self) -> float:
    """What epsilon was measured to be, at least."""
    return self.worst.lower_bound

  @property
  def verdict(self) -> str:
    """'refuted', 'not refuted', which is no proof, or 'nothing stated'."""
    return self.worst.verdict

  @property
  def refuted(self) -> bool:
    """Whether the statement, or one of several, is known not to hold."""
    return any(finding.refuted for finding in self.findings)

  def __repr__(self) -> str:
    one = self.worst
    said = 'no epsilon is stated'
    if one.stated is not None:
      said = f'epsilon {one.stated:.4g} at delta {one.delta:g} is {one.status}'
    runs = f'{2 * one.runs:,} runs' if one.runs > 1 else 'one run'
    lines = [
      f'{one.system}: {one.verdict}',
      f'  {said}, for one {one.unit}, {one.relation}',
      f'  epsilon >= {one.lower_bound:.4g} was measured, with '
      f'{100 * self.confidence:g}% confidence',
      f'  by the worst of {len(self.findings)} attacks, of {runs} each: '
      f'{one.pair!r}',
    ]
    if one.verdict == 'not refuted':
      lines.append('  which is no proof: only attacks that failed')
    if len({(each.relation, each.stated) for each in self.findings}) > 1:
      lines.append(table(self.findings))
    return '\n'.join(lines)


def worst(findings: Iterable[Finding]) -> Finding:
  """The finding that is closest to, or farthest above, what is stated."""
  found = tuple(findings)
  stated = [each for each in found if each.stated is not None] or found
  return max(stated, key=lambda each: each.lower_bound / (each.stated or 1e-9))


def table(findings: Iterable[Finding]) -> str:
  """One line for each statement: the attack on it that measured most."""
  most: dict[tuple, Finding] = {}
  for each in findings:
    stated = None if each.stated is None else round(each.stated, 6)
    key = (each.system, each.variant, each.relation, stated)
    if key not in most or each.lower_bound > most[key].lower_bound:
      most[key] = each
  head = (
    'system', 'variant', 'unit', 'relation', 'stated', 'measured', 'runs',
    'verdict', 'pair',
  )  # fmt: skip
  rows = [
    (
      each.system,
      each.variant,
      each.unit,
      each.relation,
      '-' if each.stated is None else f'{each.status} {each.stated:.3g}',
      f'>= {each.lower_bound:.3f}',
      f'{2 * each.runs:,}' if each.runs > 1 else '1',
      each.verdict,
      each.pair,
    )
    for each in most.values()
  ]
  return '\n'.join(aligned([head, *rows]))
