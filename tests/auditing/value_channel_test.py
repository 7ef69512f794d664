"""The attacks on SDCF's value channel find what is there, and only that."""

import numpy as np
import pytest
import scipy.stats

from dpmf_jax.auditing import value_channel
from dpmf_jax.plans.sdmf import SDMFConfig
from dpmf_jax.ratings.synthetic import synthetic

STARS = (1.0, 2.0, 3.0, 4.0, 5.0)


def client(
  seed, *, rounds=60, num_items=200, rank=8, num_rated=40, noise=0.02, fake=1.0
):
  """A transcript as in SDMF: true residuals, or ones that are drawn anew.

  Bits do not depend on what is rated, as good as they can be: each item is
  sent with chance 1/2 in each round. Vectors move a little between rounds.
  """
  rng = np.random.default_rng(seed)
  walk = lambda *shape: 0.003 * rng.normal(size=shape).cumsum(axis=0)
  user = rng.uniform(0.3, 1.0, rank) + walk(rounds, rank)
  items = rng.uniform(0.2, 1.0, (num_items, rank))
  items = items + walk(rounds, num_items, rank)
  rating = np.full(num_items, np.nan)
  rated = rng.choice(num_items, num_rated, replace=False)
  rating[rated] = rng.integers(1, 6, num_rated)
  residual = np.einsum('td,tid->ti', user, items) - rating
  own = residual[:, rated]
  made_up = own.mean() + own.std() * rng.normal(size=residual.shape)
  residual = np.where(np.isnan(residual), fake * made_up, residual)
  seen = rng.random((rounds, num_items)) < 0.5
  sent = residual[:, :, None] * user[:, None]
  sent = sent + noise * rng.normal(size=sent.shape)
  sent = np.where(seen[..., None], sent, np.nan)
  return sent, seen, items, rating, user


def test_a_client_is_read_from_what_it_sends():
  sent, seen, items, rating, user = client(0)
  found = value_channel.attack(
    sent, seen, items, levels=STARS, rating=rating, user=user
  )
  assert found.cosine > 0.999
  assert found.rated.area > 0.99
  assert found.recovered > 0.9
  # Ratings that were not given are not made up for most of the others.
  assert (found.flagged & np.isnan(rating)).mean() < 0.05


def test_made_up_residuals_near_zero_give_rated_items_away():
  # As for a large eps_g, which cuts made-up residuals off at a small alpha.
  sent, seen, items, rating, user = client(7, fake=0.02)
  found = value_channel.attack(
    sent, seen, items, levels=STARS, rating=rating, user=user
  )
  assert found.rated.area > 0.95
  assert found.recovered > 0.8


def test_where_all_residuals_are_made_up_nothing_is_found():
  sent, seen, items, rating, user = client(1)
  rng = np.random.default_rng(2)
  fake = rng.normal(size=seen.shape)
  sent = fake[:, :, None] * user[:, None]
  found = value_channel.attack(
    sent, seen, items, levels=STARS, rating=rating, user=user
  )
  # 40 of 200: the standard error of the area is 0.05. A false alarm has a
  # chance of 6e-5.
  assert abs(found.rated.area - 0.5) < 0.2
  assert found.recovered < 0.5


def test_noise_that_hides_values_hides_ratings():
  areas = []
  for noise in (0.02, 20.0):
    sent, seen, items, rating, user = client(3, noise=noise)
    found = value_channel.attack(
      sent, seen, items, levels=STARS, rating=rating, user=user
    )
    areas.append((found.rated.area, found.cosine, found.recovered))
  assert areas[0][0] > 0.99
  # At a thousand times the noise: chance, as above.
  assert areas[1][0] < 0.7
  assert areas[1][1] < 0.9
  assert areas[1][2] < 0.5


def test_constant_vectors_may_be_given_once():
  sent, seen, items, rating, user = client(4)
  fixed = user[0]
  residual = items[0] @ fixed - np.nan_to_num(rating)
  sent = np.broadcast_to(residual[:, None] * fixed, sent.shape)
  found = value_channel.attack(
    sent, seen, items[0], levels=STARS, rating=rating, user=fixed
  )
  assert found.cosine == pytest.approx(1.0)


def test_the_area_is_the_mann_whitney_statistic():
  rng = np.random.default_rng(5)
  truth = rng.random(300) < 0.3
  score = np.round(rng.normal(size=300) + truth, 1)  # with ties
  curve = value_channel.roc(score, truth)
  test = scipy.stats.mannwhitneyu(score[truth], score[~truth])
  assert curve.area == pytest.approx(
    test.statistic / (truth.sum() * (~truth).sum())
  )
  assert curve.false_positive[0] == curve.true_positive[0] == 0
  assert curve.false_positive[-1] == curve.true_positive[-1] == 1
  assert (np.diff(curve.false_positive) >= 0).all()
  assert value_channel.roc([2.0, 1.0], [True, False]).area == 1.0
  assert value_channel.roc([1.0, 1.0], [True, False]).area == 0.5
  with pytest.raises(ValueError, match='both kinds'):
    value_channel.roc([1.0, 2.0], [True, True])


def test_steadiness_counts_what_was_seen():
  residual = np.array([[1.0, 5.0, 1.0], [3.0, 6.0, 9.0], [9.0, 7.0, 9.0]])
  seen = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 0]], bool)
  found = value_channel.steadiness(residual, seen)
  np.testing.assert_allclose(np.exp(found[:2]), [4.0 / 2.0, 36.0 / 1.0])
  assert np.isnan(found[2])


def test_shapes_that_do_not_fit_are_refused():
  sent, seen, items, rating, user = client(6)
  with pytest.raises(ValueError, match='same rounds and items'):
    value_channel.attack(
      sent, seen[1:], items, levels=STARS, rating=rating, user=user
    )


@pytest.mark.slow
def test_a_transcript_holds_what_clients_send():
  ratings = synthetic(
    num_users=60, num_items=40, num_ratings=1200, rank=2, seed=0
  )
  config = SDMFConfig(
    scale=(1, 5), epsilon_instant=1, epsilon_value=1, rank=4, steps=40
  )
  # Some have rated nearly everything: then there is little to tell apart.
  users = np.flatnonzero(np.abs(np.bincount(ratings.user) - 15) <= 5)[:2]
  seen = value_channel.transcript(config, ratings, users, key=0, skip=30)
  assert seen.items.shape == (10, 40, 4)
  assert seen.user.shape == (10, 2, 4)
  for client, user in enumerate(users):
    own = ratings.user == user
    there = ratings.item[own]
    np.testing.assert_array_equal(
      seen.rating[client, there], ratings.value[own]
    )
    assert np.isnan(seen.rating[client]).sum() == 40 - own.sum()
    sent, was_sent = seen.of(client)
    assert (was_sent.sum(axis=1) == (seen.item[:, client] < 40).sum(-1)).all()
    assert not sent[~was_sent].any()
    # Most of what is left lies along the client's vector: by chance 1/4 would.
    message = sent[-1][was_sent[-1]]
    p = seen.user[-1, client] / np.linalg.norm(seen.user[-1, client])
    assert np.square(message @ p).sum() > 0.7 * np.square(message).sum()
  first, second = value_channel.findings(seen, levels=STARS)
  assert first.residual.shape == (10, 40)
  assert min(first.cosine, second.cosine) > 0.9
