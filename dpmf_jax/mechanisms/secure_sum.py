"""Sums of private vectors on the ring of integers modulo 2^32.

Each of k parties sends x + mask to an aggregator, which adds up what arrives
and passes on the sum; whoever knows the masks takes them off. The aggregator
sees uniform words, and who takes masks off sees one sum. All is exact: integers
in uint32, which wrap as the ring does. Everything here runs on the host, on
messages; a simulator that draws masks from JAX's generator need not add them
at all, since they cancel bit by bit.

Masks come from the operating system (`one_time_mask`) or from ChaCha20 keyed
by a seed of 256 bits (`seed_mask`), never from JAX's or NumPy's generators.
"""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

MODULUS = 2**32
_HALF = 2**31
SEED_BYTES = 32


class MaskedReport(NamedTuple):
  """What one party sends to the aggregator."""

  round: int
  sender: int
  values: np.ndarray  # uint32, masked


class Aggregate(NamedTuple):
  """What the aggregator passes on."""

  round: int
  arrived: tuple[int, ...]  # senders, in order
  values: np.ndarray  # uint32: the sum of what arrived, masked


class BrokenRoundError(ValueError):
  """A round that cannot be summed: nothing of it may be passed on."""


def check_headroom(parties: int, largest: int, spare: int = 0) -> None:
  """Returns nothing; ValueError where a sum could wrap.

  Args:
    parties: how many add to the sum.
    largest: integer bound on what one of them adds, in size.
    spare: integer bound on what noise adds to all of it.
  """
  reach = operator.index(parties) * operator.index(largest)
  reach += operator.index(spare)
  if min(parties, largest, spare) < 0 or reach >= _HALF:
    raise ValueError(
      f'{parties} parties of up to {largest} and {spare} of noise make '
      f'{reach}, which must be in 0..{_HALF - 1}, or sums would wrap: use '
      'fewer bits'
    )


def fraction_bits(parties: int, bound: float, spread: float = 0.0) -> int:
  """The most bits f after the point with which no sum can wrap.

  parties * bound + spread < 2^(31 - f), with room for the rounding of each
  party by half a spacing.

  Args:
    parties: k.
    bound: on what one of them adds, in size; `encode` clips to it.
    spread: on the sum's noise, such as 30 times its scale.
  """
  reach = parties * bound + spread
  if not (parties >= 1 and bound >= 0 and 0 < reach < math.inf):
    raise ValueError(f'{parties=}, {bound=}, {spread=} leave nothing to sum')
  bits = 31 - math.frexp(reach)[1]
  while bits >= 0 and reach * 2.0**bits + parties / 2 >= _HALF - 1:
    bits -= 1
  if bits < 0:
    raise ValueError(
      f'{parties} parties of up to {bound} and {spread} of noise do not fit '
      'into 32 bits'
    )
  return bits


def encode(values: np.ndarray, bits: int, bound: float) -> np.ndarray:
  """`values` as uint32: clipped to +-bound, in multiples of 2^-bits, nearest.

  A value that is not a number is an error, and none that is too large is let
  through: either would be read as something else after the sum.
  """
  values = np.asarray(values, np.float64)
  if np.isnan(values).any():
    raise ValueError('values to encode must be numbers, got NaN')
  if not 0 <= bound * 2.0**bits < _HALF:
    raise ValueError(f'{bound=} does not fit into 32 bits with {bits=}')
  rounded = np.rint(np.clip(values, -bound, bound) * 2.0**bits)
  return on_ring(rounded.astype(np.int64))


def decode(words: np.ndarray, bits: int) -> np.ndarray:
  """The float64 values of a sum of encoded values; error k 2^-bits / 2."""
  return signed(words).astype(np.float64) * 2.0**-bits


def on_ring(integers: np.ndarray) -> np.ndarray:
  """Integers modulo 2^32, as uint32."""
  return (np.asarray(integers, np.int64) % MODULUS).astype(np.uint32)


def signed(words: np.ndarray) -> np.ndarray:
  """The integers in -2^31 .. 2^31 - 1 that words stand for, as int32."""
  return _words(words).view(np.int32)


def ring_sum(words: Iterable[np.ndarray]) -> np.ndarray:
  """The sum modulo 2^32 of arrays of one shape."""
  stacked = np.stack([_words(part) for part in words])
  return stacked.sum(axis=0, dtype=np.uint32)


def masked(words: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """`words` plus `mask` modulo 2^32.

  Privacy: if the mask is uniform, used once and not known, the result is
  uniform and says nothing of `words`. Two uses of a mask give the difference
  of what they hid.
  """
  words, mask = _words(words), _words(mask)
  if words.shape != mask.shape:
    raise ValueError(f'a mask of shape {mask.shape} for words of {words.shape}')
  return words + mask  # wraps, as the ring does


def one_time_mask(shape: tuple[int, ...]) -> np.ndarray:
  """Uniform words from the operating system's generator."""
  drawn = secrets.token_bytes(4 * math.prod(shape))
  return np.frombuffer(drawn, '<u4').astype(np.uint32).reshape(shape)


def new_seed() -> bytes:
  """A secret seed for `seed_mask`, to be shared by two parties."""
  return secrets.token_bytes(SEED_BYTES)


def seed_mask(
  seed: bytes, shape: tuple[int, ...], *, round: int, sender: int
) -> np.ndarray:
  """The mask that a seed gives for one round and sender: ChaCha20's stream.

  Reference: RFC 8439. The nonce is (round, sender), so that a seed gives
  every round a mask of its own. A round that is done again is another round.

  Privacy: as good as a one-time mask to whoever cannot tell ChaCha20 from
  random. A round number must not be used twice with one seed.
  """
  if len(seed) != SEED_BYTES:
    raise ValueError(f'a seed has {SEED_BYTES} bytes, got {len(seed)}')
  try:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
  except ImportError:
    raise ImportError(
      'masks from seeds need the package cryptography: pip install '
      "'dpmf_jax[secure]', or use one_time_mask"
    ) from None
  nonce = round.to_bytes(8, 'little') + sender.to_bytes(4, 'little')
  # The first four bytes are ChaCha20's block counter.
  cipher = Cipher(algorithms.ChaCha20(seed, bytes(4) + nonce), mode=None)
  size = 4 * math.prod(shape)
  if size > 2**38:
    raise ValueError(f'a mask of shape {shape} is longer than the stream')
  stream = cipher.encryptor().update(bytes(size))
  return np.frombuffer(stream, '<u4').astype(np.uint32).reshape(shape)


def aggregate(
  reports: Iterable[MaskedReport],
  *,
  round: int,
  expected: Iterable[int],
  least: int | None = None,
  rows: Mapping[int, np.ndarray] | None = None,
  num_rows: int = 0,
) -> Aggregate:
  """The sum of a round's reports, with who is in it.

  Args:
    reports: what arrived.
    round: its number.
    expected: who may send.
    least: how many must have arrived; all by default.
    rows: which rows of the sum the rows of a sender's report are for, where
      reports are not about all of them.
    num_rows: of the sum, then.

  Raises:
    BrokenRoundError: where a report is missing, doubled, of another round, from
      somebody else or of another shape. The caller then passes nothing on and
      has the round done again, under another number and with new masks.

  Privacy: shares of noise add up to enough only if enough of them are there,
  so that `least` is part of a proof: see `shares`.
  """
  expected = set(expected)
  least = len(expected) if least is None else least
  if not 1 <= least <= len(expected):
    raise ValueError(f'{least=} must be in 1..{len(expected)}')
  found: dict[int, np.ndarray] = {}
  for report in reports:
    if report.round != round:
      raise BrokenRoundError(
        f'a report of round {report.round} from {report.sender} in {round}'
      )
    if report.sender not in expected:
      raise BrokenRoundError(f'nobody expects a report from {report.sender}')
    if report.sender in found:
      raise BrokenRoundError(
        f'two reports from {report.sender} in round {round}'
      )
    found[report.sender] = _words(report.values)
  if len(found) < least:
    raise BrokenRoundError(
      f'{len(found)} of {len(expected)} reports arrived in round {round}, and '
      f'{least} are needed: nothing is passed on'
    )
  arrived = tuple(sorted(found))
  return Aggregate(round, arrived, _total(found, arrived, rows, num_rows))


def _total(
  words: Mapping[int, np.ndarray],
  senders: tuple[int, ...],
  rows: Mapping[int, np.ndarray] | None,
  num_rows: int,
) -> np.ndarray:
  """The sum of `words` of the senders, row by row where `rows` says so."""
  shapes = {words[who].shape[rows is not None :] for who in senders}
  if len(shapes) != 1:
    raise BrokenRoundError(f'words to sum differ in shape: {shapes}')
  if rows is None:
    return ring_sum(words[who] for who in senders)
  total = np.zeros((num_rows, *shapes.pop()), np.uint32)
  for who in senders:
    if who not in rows or len(rows[who]) != len(words[who]):
      raise BrokenRoundError(f'no rows for the {len(words[who])} from {who}')
    if len(np.unique(rows[who])) != len(rows[who]):
      raise BrokenRoundError(f'a row of {who} is there twice')
    total[rows[who]] += _words(words[who])
  return total


def unmasked(
  total: Aggregate,
  masks: Mapping[int, np.ndarray],
  *,
  round: int,
  rows: Mapping[int, np.ndarray] | None = None,
) -> np.ndarray:
  """The sum [...] as int32, once the masks of those in it are taken off.

  Dropout is repaired here: masks of those who did not arrive are not in the
  sum, and stay where they are.

  Raises:
    BrokenRoundError: for another round's sum, a sender without a mask, a sender
      who is counted twice, or none at all.
  """
  if total.round != round:
    raise BrokenRoundError(f'a sum of round {total.round} in round {round}')
  if not total.arrived or len(set(total.arrived)) != len(total.arrived):
    raise BrokenRoundError(f'senders {total.arrived} must be there, each once')
  missing = set(total.arrived) - set(masks)
  if missing:
    raise BrokenRoundError(f'no mask of {sorted(missing)}, who are in the sum')
  known = _total(masks, total.arrived, rows, len(total.values))
  if known.shape != np.shape(total.values):
    raise BrokenRoundError(
      f'masks of shape {known.shape} for a sum of {np.shape(total.values)}'
    )
  return signed(_words(total.values) - known)


def pieces(total: np.ndarray, parties: int) -> np.ndarray:
  """Words [parties, ...] that add up to `total`, each uniform on its own.

  Any parties - 1 of them together are uniform, whatever `total` is.
  """
  if parties < 1:
    raise ValueError(f'{parties=} must be at least 1')
  return row_pieces(_words(total)[None], np.zeros(parties, np.int64))


def row_pieces(totals: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Words [n, ...] of which those for a row add up to that row of `totals`.

  Args:
    totals: uint32 [num_rows, ...].
    rows: [n] the row of each piece; a row that is not there gets none.

  Those of a row are uniform as `pieces` says, and independent of other rows'.
  """
  totals = _words(totals)
  drawn = one_time_mask((len(rows), *totals.shape[1:]))
  last = np.full(len(totals), -1)
  last[rows] = np.arange(len(rows))  # of two that are equal, the last counts
  there = np.flatnonzero(last >= 0)
  drawn[last[there]] = 0
  others = np.zeros_like(totals)
  np.add.at(others, rows, drawn)
  drawn[last[there]] = totals[there] - others[there]
  return drawn


def _words(words: np.ndarray) -> np.ndarray:
  words = np.asarray(words)
  if words.dtype != np.uint32:
    raise ValueError(f'words on the ring are uint32, got {words.dtype}')
  return words
