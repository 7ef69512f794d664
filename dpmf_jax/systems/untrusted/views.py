"""What each party of the untrusted recommender sees, and nothing else.

A party's view is all that reaches it, so that a guarantee against the party is
a statement about this type. In the sound variant there is one sum and nobody
knows who rated what; in the paper's the recommender also knows H.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class PublicView(NamedTuple):
  """What everybody gets."""

  items: Any  # [I, D]
  offset: Any  # []


class RecommenderView(NamedTuple):
  """The recommender's: sums over users, with the masks taken off."""

  public: PublicView
  sums: Any  # [I, W] of the one round; paper: [2, I, D] of the last two
  noise_scales: Any  # paper: H [I, D], which the recommender drew; else None
  colluders_shares: Any = None  # [I, W] their sum


class ThirdPartyView(NamedTuple):
  """The third party's: what arrives, each report under a mask."""

  public: PublicView
  reports: Any  # [U, I, W] uint32; paper: [N, D], for whoever rated what
  colluders_shares: Any = None  # [I, W] their sum
