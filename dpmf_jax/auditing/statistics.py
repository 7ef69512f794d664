"""Scores that tell the outputs of two neighbouring data sets apart.

A statistic is fitted on runs of both data sets and gives a score for every
output: the larger, the more it looks like the second data set. Any score is
valid, a better one only makes the bound larger. Outputs are [N, F], and
`blocks` says which columns are the rows of which released matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

Score = Callable[[np.ndarray], np.ndarray]  # [N, F] -> [N]

# Above this many columns covariances are taken as diagonal.
_COVARIANCE_COLUMNS = 160
_LARGEST = 1e12


class Block(NamedTuple):
  """A released matrix: columns start .. start + rows * width of an output."""

  start: int
  rows: int
  width: int

  def of(self, outputs: np.ndarray) -> np.ndarray:
    """The matrix of each output, [N, rows, width]."""
    stop = self.start + self.rows * self.width
    return outputs[:, self.start : stop].reshape(-1, self.rows, self.width)


Blocks = tuple[Block, ...]
Statistic = Callable[[np.ndarray, np.ndarray, Blocks], Score]


def linear(first: np.ndarray, second: np.ndarray, blocks: Blocks) -> Score:
  """Fisher's discriminant: optimal for a shift in Gaussian noise."""
  del blocks
  return _discriminant(first, second, quadratic=False)


def quadratic(first: np.ndarray, second: np.ndarray, blocks: Blocks) -> Score:
  """The quadratic discriminant: sees a change of the covariance, too."""
  del blocks
  return _discriminant(first, second, quadratic=True)


def log_variance(
  first: np.ndarray, second: np.ndarray, blocks: Blocks
) -> Score:
  """A discriminant on the logarithms of each released matrix's spread.

  It catches Gaussian MF as published: what one rating changes there is how
  large the user factors are, not where they are.
  """

  def spreads(outputs):
    outputs = _finite(outputs)
    parts = []
    for block in blocks:
      matrix = block.of(outputs)
      parts += [
        matrix.var(axis=(1, 2)),
        np.square(matrix).mean(axis=(1, 2)),
        matrix.var(axis=1).max(axis=1),
        np.abs(matrix).max(axis=(1, 2)),
      ]
    return np.log(np.stack(parts, axis=1) + 1e-30)

  score = _discriminant(spreads(first), spreads(second), quadratic=True)
  return lambda outputs: score(spreads(outputs))


def extreme(first: np.ndarray, second: np.ndarray, blocks: Blocks) -> Score:
  """How far the farthest coordinate is from where the first data set has it."""
  del second, blocks
  center = np.median(_finite(first), axis=0)
  spread = np.median(np.abs(_finite(first) - center), axis=0)

  def score(outputs):
    away = np.abs(_finite(outputs) - center)
    return (away / np.where(spread > 0, spread, 1.0)).max(axis=1)

  return score


def support(first: np.ndarray, second: np.ndarray, blocks: Blocks) -> Score:
  """How far outside the box of all outputs of the first data set, less the
  same for the second: what one of them cannot have given at all."""
  del blocks
  boxes = []
  for sample in (first, second):
    low, high = _finite(sample).min(axis=0), _finite(sample).max(axis=0)
    # A column that never varies is left at the slightest difference.
    boxes.append((low, high, np.where(high > low, high - low, 1e-9)))

  def beyond(outputs, box):
    low, high, width = box
    return (np.maximum(low - outputs, outputs - high) / width).max(axis=1)

  def score(outputs):
    outputs = _finite(outputs)
    return beyond(outputs, boxes[0]) - beyond(outputs, boxes[1])

  return score


STATISTICS: dict[str, Statistic] = {
  'linear': linear,
  'quadratic': quadratic,
  'log_variance': log_variance,
  'extreme': extreme,
  'support': support,
}


def _finite(outputs: np.ndarray) -> np.ndarray:
  """Outputs in float64; NaN becomes a number that nothing else has."""
  outputs = np.asarray(outputs, np.float64)
  clipped = np.clip(outputs, -_LARGEST, _LARGEST)
  return np.where(np.isnan(outputs), 2 * _LARGEST, clipped)


def _discriminant(
  first: np.ndarray, second: np.ndarray, *, quadratic: bool
) -> Score:
  """The log ratio of two Gaussian densities fitted to the samples."""
  first, second = _finite(first), _finite(second)
  spread = np.sqrt((first.var(axis=0) + second.var(axis=0)) / 2)
  gap = np.abs(first.mean(axis=0) - second.mean(axis=0))
  # A column without noise separates as well as can be if its mean differs.
  scale = np.where(spread > 0, spread, np.where(gap > 0, gap * 1e-6, 1.0))
  origin = first.mean(axis=0)
  standard = lambda outputs: (_finite(outputs) - origin) / scale
  samples = [standard(first), standard(second)]
  means = [sample.mean(axis=0) for sample in samples]
  full = first.shape[1] <= _COVARIANCE_COLUMNS
  covariances = [
    np.atleast_2d(np.cov(sample, rowvar=False)) if full else sample.var(axis=0)
    for sample in samples
  ]
  if not quadratic:
    covariances = [(covariances[0] + covariances[1]) / 2] * 2
  densities = [
    _log_density(mean, covariance, full)
    for mean, covariance in zip(means, covariances, strict=True)
  ]

  def score(outputs):
    outputs = standard(outputs)
    return densities[1](outputs) - densities[0](outputs)

  return score


def _log_density(mean: np.ndarray, covariance: np.ndarray, full: bool) -> Score:
  """Of a Gaussian, up to a constant that both densities share."""
  # Keeps directions without noise finite, and their weight very large.
  floor = 1e-9
  if not full:
    variance = covariance + floor
    offset = np.log(variance).sum() / 2
    return lambda z: -np.square(z - mean) @ (0.5 / variance) - offset
  values, vectors = scipy.linalg.eigh(covariance)
  values = np.maximum(values, 0) + floor
  whiten = vectors / np.sqrt(values)
  offset = np.log(values).sum() / 2
  return lambda z: -np.square((z - mean) @ whiten).sum(axis=1) / 2 - offset
