"""A test of independence, for random words that must not be used twice."""

import numpy as np
import scipy.stats


def assert_independent(uniform, size, fraction):
  """A chi-squared test of `uniform` in 0..size-1 and `fraction` in [0, 1].

  By the upper four bits of `fraction` and the upper and the lower four of
  `uniform`: up to 225 degrees of freedom, and a false alarm of 2e-8.
  """
  columns = np.minimum((np.asarray(fraction) * 16).astype(int), 15)
  uniform = np.asarray(uniform).astype(int)
  for rows in (uniform * 16 // size, uniform % 16):
    table = np.zeros((16, 16))
    np.add.at(table, (rows, columns), 1)
    table = table[:, table.any(axis=0)]
    assert scipy.stats.chi2_contingency(table).pvalue > 1e-8
