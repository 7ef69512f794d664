"""Each rating's own epsilon: what is accounted for, and what is said of it."""

import math
from fractions import Fraction

import certified
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations import personal, personal_moves, spread_ratings
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax import accounting, certificates
from dpmf_jax.accounting.rounding import WEIGHT_BITS, shift_rounding
from dpmf_jax.certificates import rendering, wording
from dpmf_jax.mechanisms import sampling
from dpmf_jax.ratings import specification
from dpmf_jax.rows import rounded_down, training_data
from dpmf_jax.systems import personalized_pmf as p

COUNT = 16  # epsilons in a random specification; one shape, one compilation

# Any, and those that float32 cannot tell from t, or can just tell.
own = st.one_of(
  st.tuples(st.just('any'), st.floats(1e-6, 40.0)),
  st.tuples(st.just('near'), st.floats(-3e-7, 3e-7)),
  st.tuples(st.just('small'), st.floats(0.0, 2e-3)),
)


@st.composite
def specifications(draw):
  t = draw(st.floats(1e-2, 30.0))
  made = {
    'any': lambda x: x,
    'near': lambda x: t * (1 + x),
    'small': lambda x: t * x + 1e-12,
  }
  asked = draw(st.lists(own, min_size=COUNT, max_size=COUNT))
  return t, np.array([made[kind](x) for kind, x in asked])


@settings(max_examples=100)
@given(specifications(), st.integers(0, 18))
def test_no_weighted_rating_is_accounted_more_than_it_asked(made, shift):
  t, asked = made
  config = personal(epsilon=t, shift=shift)
  found = p.accounted_epsilons(config, asked)
  assert (found <= asked).all()
  assert (found <= t).all()
  # In exact arithmetic, from the weights that the lattice sums are given.
  weight = sampling.weights(
    jnp.asarray(rounded_down(asked)), t, shift_rounding(shift)
  )
  steps = np.floor(np.asarray(weight, np.float64) * 2**WEIGHT_BITS)
  rounding = Fraction(shift_rounding(shift))
  for value, count, wish in zip(found, steps, asked, strict=True):
    v = Fraction(int(count), 2**WEIGHT_BITS)
    moved = (v + rounding) / (1 + rounding) if v else Fraction(0)
    assert moved * Fraction(t) <= Fraction(wish)
    assert float(moved) * t == pytest.approx(value, rel=1e-12)


@settings(max_examples=100)
@given(specifications())
def test_no_sampled_rating_is_accounted_more_than_it_asked(made):
  t, asked = made
  found = p.accounted_epsilons(personal(epsilon=t, method='sampling'), asked)
  assert (found <= asked).all()
  assert (found <= t).all()
  # And little is wasted, but for coins that come in 2^-32.
  coin = np.log1p(2.0**-32 * math.expm1(t))
  assert (found >= np.minimum(asked, t) * (1 - 1e-4) - 2 * coin).all()
  level = jnp.asarray(rounded_down(asked))
  chance = sampling.probabilities(level, t)
  coins = np.asarray(sampling.coins_below(chance)).tolist()
  for value, count, sure in zip(found, coins, chance >= 1, strict=True):
    kept = 1.0 if sure else count / 2**32
    assert value == pytest.approx(
      float(accounting.sampled_epsilon(kept, t)), rel=1e-12
    )


def test_what_is_accounted_is_what_ratings_move():
  rng = np.random.default_rng(0)
  ratings = spread_ratings()
  asked = np.exp(rng.uniform(np.log(1e-4), 0.7, len(ratings)))
  ratings = specification.with_epsilon(ratings, asked)
  config = personal(epsilon=1.5)
  found = p.accounted_epsilons(config, asked)
  assert (found == 0).any()  # too little to be used at all
  for gone, spent in personal_moves(config, ratings):
    assert spent <= found[gone]
    if ratings.value[gone] in (1, 5) and asked[gone] > 0.1:
      assert spent > 0.97 * found[gone]


def test_the_weights_of_a_run_are_those_that_are_accounted_for(small_ratings):
  ratings = specification.from_fractions(small_ratings, seed=1)
  config = personal(epsilon=0.8)
  data = training_data(ratings)
  state = p.personalized_pmf(config).init(jax.random.key(0), data)
  level = np.asarray(data.by_item.epsilon)
  used = level > 0
  found = p.accounted_epsilons(config, level[used])
  r = shift_rounding(config.shift)
  want = 0.8 * (np.asarray(state.weight)[used] + r) / (1 + r)
  # A weight is rounded down to 2^-14.
  assert (found <= want).all()
  assert (found > want - 0.8 * 2.0**-14 * 1.001).all()


def statement(asked='fractions', **fields):
  config = personal(epsilon=0.7, **fields)
  if asked == 'fractions':
    asked = specification.asked_by_fractions()
  system = p.personalized_pmf(config)
  return certificates.certificate(
    system.guarantee,
    system='personalized_pmf',
    config=config,
    delta=0.0,
    randomness=certified.SECRET,
    personal=p.personal(config, asked),
  )


@pytest.mark.parametrize('method', ['weights', 'sampling'])
def test_a_certificate_has_the_distribution_of_what_is_accounted(method):
  document = statement(method=method)
  certificates.validate(document)
  own = document['personal']
  assert (own['method'], own['threshold'], own['worst_case']) == (
    method, 0.7, document['epsilon']
  )  # fmt: skip
  found = own['distribution']
  # Quantiles of the specification by hand, cut at t: 0.54 are uniform in
  # 0.1..0.2, 0.37 in 0.2..1; 2e-4 is rounding of weights, 1e-3 of the grid.
  want = [0.1 + 0.1 * q / 0.54 for q in (0.25, 0.5)]
  want.append(0.2 + 0.8 * (0.75 - 0.54) / 0.37)
  np.testing.assert_allclose(found['quartiles'], want, atol=1.3e-3)
  assert 0.0998 < found['least'] <= 0.1
  assert found['largest'] == 0.7
  part = 0.37 * 0.5 / 0.8  # in 0.2..0.7
  mean = 0.54 * 0.15 + part * 0.45 + (1 - 0.54 - part) * 0.7
  assert found['mean'] == pytest.approx(mean, abs=3e-4)
  bins = found['histogram']
  assert sum(bins['shares']) == pytest.approx(1)
  np.testing.assert_allclose(bins['edges'], np.linspace(0, 0.7, 11))
  # 0.14..0.21 holds 0.6 of the conservative and 0.01 of the moderate.
  assert bins['shares'][2] == pytest.approx(
    0.54 * 0.6 + 0.37 * 0.01 / 0.8, abs=2e-3
  )
  assert (
    'is proved to be at most what the specification gives it' in own['note']
  )


def test_what_is_beside_the_ratings_is_not_released():
  document = statement(asked=None)
  assert document['personal']['distribution'] is None
  assert 'would tell of ratings' in document['personal']['note']
  assert document['personal']['worst_case'] == document['epsilon']
  assert 'at most 0.7' in wording.summary(document)


def test_a_claim_is_not_called_a_proof():
  own = statement(variant='paper', method='sampling')['personal']
  assert 'claimed by the paper, and not proved' in own['note']


@pytest.mark.parametrize(
  'render', [rendering.text, rendering.markdown, rendering.html]
)
def test_every_format_shows_own_epsilons(render):
  shown = ' '.join(render(statement()).split())
  for words in (
    'Epsilon of each rating',
    'Of all pairs of a user and an item, rated or not:',
    'half have at most',
    'three quarters have at most',
  ):
    assert words.lower() in shown.lower()
  # Rounded up: the third quartile is 0.6542 to 0.6541 in weights.
  assert '0.65' in shown
  document = statement(asked=None)
  assert 'half have at most' not in render(document)
  assert 'of each rating' in render(document).lower()


def test_the_summary_has_a_line_of_it():
  lines = wording.summary(statement()).splitlines()
  own = '  personal   each rating has its own epsilon: 0.'
  assert sum(line.startswith(own) for line in lines) == 1
  assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('method', 'both'),
    ('threshold', 0),
    ('worst_case', None),
    ('note', ''),
    ('distribution', {}),
    ('distribution', 'even'),
  ],
)
def test_a_broken_statement_is_named(field, value):
  document = statement()
  document['personal'][field] = value
  with pytest.raises(ValueError, match=rf'field personal\.{field}'):
    certificates.validate(document)
  del document['personal'][field]
  with pytest.raises(ValueError, match=f"'{field}' is a required"):
    certificates.validate(document)


@pytest.mark.parametrize(
  ('field', 'value'),
  [('quartiles', [1, 2]), ('least', -1), ('mean', None), ('of', ' '),
   ('histogram', {'edges': [0, 1]})],
)  # fmt: skip
def test_a_broken_distribution_is_refused(field, value):
  document = statement()
  document['personal']['distribution'][field] = value
  with pytest.raises(ValueError, match=r'field personal\.distribution'):
    certificates.validate(document)
