"""How much users differ in level: two integers, and what moves them.

What item means leave of ratings is counted in fourths of a quarter of the scale
and clipped to six of these, and a user weighs as if they had eight ratings at
most: few ratings are where a bias has to be shrunk.
"""

from __future__ import annotations

STEPS, BOUND, RATINGS = 4, 6, 8
# Sums over users are less than 2^30, and those of a user fit int32.
MAX_USERS = 2**30 // (RATINGS * BOUND**2)
MAX_ITEMS = (2**31 - 1) // BOUND**2


def sensitivities() -> tuple[int, int]:
  """How far one rating moves the two integers that `systems.user_levels` gives.

  With n ratings of at most Y in size, sum s and sum of squares q, a user has
  the terms m min(n, L) and min(n, L) q / n, from n = 2 on, where m = (s^2 - q)
  / (n (n - 1)). One rating y more makes m less by 2 (m - s y / n) / (n + 1). So
  for n < L the first moves by |2 s y / n - m| <= 3 Y^2, from n = L on by at
  most 4 Y^2 L / (L + 1), and the second by Y^2; both by at most 2 Y^2 where n
  goes from 1 to 2. As these are integers, rounding adds nothing; one more is
  for float32.
  """
  square = BOUND**2
  large = 4 * square * RATINGS // (RATINGS + 1)
  return max(3 * square, large) + 1, 2 * square + 1
