"""Rows of numbers of any size, for tests that hold for all of them."""

import numpy as np
from hypothesis import strategies as st


@st.composite
def rows_of_any_size(draw, *, most_rank):
  """Twenty normal rows of a rank up to that, times exp(-12) to exp(12).

  Every rank is compiled anew, so these are a few, odd ones among them.
  """
  ranks = (1, 2, 3, 4, 7, 16, 31, 64, 65, 127, 200)
  rank = draw(st.sampled_from([rank for rank in ranks if rank <= most_rank]))
  size = np.exp(draw(st.floats(-12, 12)))
  rng = np.random.default_rng(draw(st.integers(0, 2**31 - 1)))
  return (size * rng.normal(size=(20, rank))).astype(np.float32)
