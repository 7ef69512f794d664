"""What a figure is made of: cases that are run, and axes that are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from benchmarks.reproduce.data import Filter, Kind
from benchmarks.reproduce.table import as_json

Form = Literal['published', 'sound', 'not private']


@dataclass(frozen=True)
class Case:
  """A point, or a curve, of a figure.

  Attributes:
    curve: what it is called in the picture.
    form: as published, the sound form, or without privacy.
    measure: its name in `measures`, or in `counts` where nothing is trained.
    system, variant, settings: what is trained.
    x: where the point is; None for a curve by steps, or a level.
    split: what is held out.
    runs: seeds, or folds, 0 .. this - 1.
    fractions: of `from_fractions`, where ratings have an epsilon of their own.
    options: of the measure.
    published: the paper's own numbers by metric, where they are known.
  """

  curve: str
  form: Form
  measure: str
  system: str = ''
  variant: str = 'paper'
  settings: Mapping[str, Any] = field(default_factory=dict)
  x: float | None = None
  split: Kind = '80/20'
  runs: int = 1
  fractions: Mapping[str, float] | None = None
  options: Mapping[str, Any] = field(default_factory=dict)
  published: Mapping[str, float] = field(default_factory=dict)

  def key(self) -> str:
    """All that determines its numbers, but for data and seeds."""
    parts = {'measure': self.measure, 'split': self.split, **self.options}
    if self.system:
      parts |= {'system': self.system, 'variant': self.variant}
    if self.fractions is not None:
      parts['fractions'] = dict(self.fractions)
    return as_json(parts | {'settings': dict(self.settings)})


class Axis(NamedTuple):
  """A row of panels, one for each data set.

  `only` has the beginnings of the names of the curves that are shown; by
  default all are.
  """

  metric: str
  x_label: str
  y_label: str
  kind: Literal['lines', 'bars'] = 'lines'
  log_x: bool = False
  only: tuple[str, ...] = ('',)


@dataclass(frozen=True)
class Figure:
  """A figure or table of a paper.

  Attributes:
    name: PAPER/NAME.
    published: its number in the paper.
    says: what the paper says of it.
    data: names of data sets at full scale, those that take least time first.
    cases: data set, or 'quick' -> what to run.
    axes: what to draw.
    kept: which users and items the paper keeps of a full file.
  """

  name: str
  published: str
  says: str
  data: tuple[str, ...]
  cases: Callable[[str], list[Case]]
  axes: tuple[Axis, ...]
  kept: Filter = 'none'

  @property
  def paper(self) -> str:
    return self.name.split('/')[0]

  def shown(self, curve: str) -> set[str]:
    """The metrics of the axes that show a curve."""
    return {axis.metric for axis in self.axes if curve.startswith(axis.only)}
