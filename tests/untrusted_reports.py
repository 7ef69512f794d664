"""What single users report, sound and as published, for tests of it.

`federated.sums_protocol` and `gradients_protocol` have it for all users of a
node at once.
"""

import jax.numpy as jnp
import numpy as np

from dpmf_jax.federated import masks
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.secure_sum import MaskedReport
from dpmf_jax.systems.untrusted import rounds, sums


def user_sums(features, items, values, num_items, hyper):
  """One user's part [I, W] of `sums.statistic`, int32."""
  number = len(items)
  # Padded, so that users with about as many ratings share compiled code.
  padded = np.zeros(1 << max(number - 1, 0).bit_length(), np.float32)
  padded[:number] = values
  features = jnp.asarray(features, jnp.int32)
  every = jnp.broadcast_to(features, (padded.size, features.size))
  terms = np.asarray(sums.rating_terms(every, jnp.asarray(padded), hyper))
  made = np.zeros((num_items, terms.shape[1]), np.int32)
  np.add.at(made, items, terms[:number])
  return made


def gradient_report(
  vector, items, values, share, mask, hyper, *, round, sender
):
  """A user's report of a round of gradients.

  Args:
    vector: [D] own.
    items: [n, D] factors as served, of own items.
    values: [n] own ratings.
    share: [n, D] integers: own share of noise (static), or the piece that was
      dealt out for this round (dynamic).
    mask: [n, D] uint32.
    hyper: settings.
    round, sender: which report it is.
  """
  items = jnp.asarray(items, jnp.float32)
  user = jnp.broadcast_to(jnp.asarray(vector, jnp.float32), items.shape)
  values = jnp.asarray(values, jnp.float32)
  counts = rounds.gradient_counts(user, items, values, hyper)
  words = masks.masked_words(np.asarray(counts), share, mask)
  return MaskedReport(round, sender, words)


def collected_noise(share_reports, betas, rated, num_items):
  """(tau-hat, alpha) [I, D]: what the recommender and the third party hold.

  Args:
    share_reports: tau of each user: own share plus beta.
    betas: masks that the recommender sent them.
    rated: items of each user.
    num_items: I.
  """
  total = secure_sum.aggregate(
    share_reports, round=0, expected=rated, rows=rated, num_rows=num_items
  )
  alpha = secure_sum.one_time_mask(total.values.shape)
  hidden = total._replace(values=total.values + alpha)
  held = secure_sum.unmasked(hidden, betas, round=0, rows=rated)
  return held.view(np.uint32), alpha


def dealt_pieces(noise, rated):
  """The recommender's pieces [n, D] of tau-hat for those who are online."""
  pieces = secure_sum.row_pieces(noise, np.concatenate([*rated.values()]))
  ends = np.cumsum([len(items) for items in rated.values()])[:-1]
  return dict(zip(rated, np.split(pieces, ends), strict=True))
