import decimal
import math
import re

import mpmath
import pytest
from certified import make
from hypothesis import example, given
from hypothesis import strategies as st

from dpmf_jax import accounting
from dpmf_jax.certificates import rendering, wording

EPSILONS = st.floats(1e-8, 1e4)


def number(words):
  """The number that was shown."""
  if words == 'practically 100%':
    return mpmath.mpf(100)
  words = words.replace(',', '').removesuffix('%')
  base, _, power = words.partition('^')
  return mpmath.mpf(base) ** mpmath.mpf(power) if power else mpmath.mpf(base)


def test_the_example_of_a_text_book():
  assert wording.factor_words(2.0) == '7.39'
  assert wording.percent_words(wording.posterior(2.0, 0.5)) == '88.1%'
  assert wording.chance_words(1e-6) == 'one in a million'
  assert wording.chance_words(1e-5) == 'one in 100,000'
  assert wording.chance_words(0.25) == '25%'
  assert wording.factor_words(0.0) == '1'
  assert wording.percent_words(wording.posterior(0.0, 0.01)) == '1%'


@given(EPSILONS, st.floats(0.001, 0.999))
def test_posterior_is_exact(epsilon, prior):
  with mpmath.workdps(60):
    p = mpmath.mpf(repr(prior))
    odds = p / (1 - p) * mpmath.exp(mpmath.mpf(epsilon))
    want = odds / (1 + odds)
    found = mpmath.mpf(str(wording.posterior(epsilon, prior)))
    assert abs(found - want) < mpmath.mpf(10) ** -50


@given(EPSILONS)
@example(1.0)
@example(20.0)
@example(math.nextafter(20.0, 21))
def test_the_factor_is_rounded_up_and_near(epsilon):
  with mpmath.workdps(60):
    shown = number(wording.factor_words(epsilon))
    if epsilon <= 20:
      true = mpmath.exp(mpmath.mpf(epsilon))
      assert true <= shown <= 1.01 * true + mpmath.mpf('2e-6')
    else:
      true = mpmath.mpf(epsilon)
      assert true <= mpmath.log(shown) + mpmath.mpf(10) ** -40 <= 1.011 * true


@given(EPSILONS, st.sampled_from([0.01, 0.1, 0.5, 0.9]))
def test_the_percentage_is_rounded_up_and_near(epsilon, prior):
  chance = wording.posterior(epsilon, prior)
  words = wording.percent_words(chance)
  with decimal.localcontext() as context:
    context.prec = 60
    shown = decimal.Decimal(words.removeprefix('practically ')[:-1]) / 100
    assert chance <= shown <= 1
    # The rest that is promised is within a tenth of what it is, or 0.1%.
    lost = (1 - chance) - (1 - shown)
    assert lost <= max((1 - chance) / 5, decimal.Decimal('1e-8'))


@given(st.floats(1e-15, 0.999))
def test_the_chance_is_rounded_up_and_near(delta):
  words = wording.chance_words(delta)
  if words.endswith('%'):
    shown = number(words) / 100
  else:
    count = words.removeprefix('one in ')
    named = {'a thousand': 10**3, 'a million': 10**6, 'a billion': 10**9}
    shown = 1 / mpmath.mpf(named.get(count) or number(count))
  slack = 10 if '^' in words else 1.1
  assert delta * (1 - 1e-12) <= shown <= max(slack * delta, delta + 0.001)


def test_delta_alone_is_not_how_often_the_odds_move_further():
  # Why the words are as they are: the loss of Gaussian noise passes epsilon
  # more often than delta, here 24 times, and a sentence 'within e^epsilon but
  # for a chance of delta' would be false.
  mu = accounting.gaussian.mu_of(1.0, 1e-6)
  passes = float(mpmath.ncdf(-(1.0 / mu - mu / 2)))
  assert passes > 20e-6
  words = ' '.join(strength(make(epsilon=1.0)[1]).paragraphs)
  assert 'with a chance of one in a million (delta) it is shown' in words
  assert 'except' not in words


def section_of(document, title):
  sections = wording.sections(document)
  return next(section for section in sections if section.title == title)


def strength(document):
  return section_of(document, 'How strongly')


def not_protected(document):
  return section_of(document, 'What is not protected')


def test_strength_of_small_and_large_epsilon():
  words = strength(make(epsilon=0.5)[1])
  assert 'a strong bound' in ' '.join(words.paragraphs)
  assert words.rows[2] == ('50%', '62.3%')
  words = strength(make(epsilon=14.0)[1])
  assert 'so weak a bound' in ' '.join(words.paragraphs)
  assert words.rows[2][1].startswith('99.9999')
  for epsilon, word in ((2.0, 'moderate'), (5.0, 'weak')):
    assert word in ' '.join(strength(make(epsilon=epsilon)[1]).paragraphs)


def test_what_is_learned_fits_the_relation():
  words = ' '.join(strength(make(relation='replace')[1]).paragraphs)
  assert 'what value a certain rating has' in words
  assert 'is there' not in words
  words = ' '.join(strength(make(relation='add_remove')[1]).paragraphs)
  assert 'whether a certain rating exists' in words
  # Two guesses about the value are two steps apart: 2 mu.
  assert 'less protection: epsilon = 3.212, a factor of 24.9, and' in words
  mu = accounting.gaussian.mu_of(1.5, 1e-6)
  assert accounting.gaussian.epsilon_of(2 * mu, 1e-6) < 3.212


def test_ten_ratings_have_ten_times_mu():
  # From epsilon 2 and delta 1e-6 alone a factor of 10^8.69 would follow, and a
  # chance of practically 100%: nothing.
  document = make(epsilon=2.0, steps=60)[1]
  (_, ten) = document['groups']
  assert (ten['size'], ten['delta']) == (10, 1e-6)
  assert ten['epsilon'] == pytest.approx(30.68, abs=0.005)
  words = (
    'For ten of them this is left: epsilon = 30.69, a factor of 10^13.4, and a '
    'chance of one in a million of being shown.'
  )
  for render in (rendering.text, rendering.markdown, rendering.html):
    shown = ' '.join(render(document).replace('\\', '').split())
    assert words in shown
    assert 'practically 100%' not in shown


def test_ten_ratings_have_ten_times_a_pure_epsilon():
  document = make('objective_pmf', epsilon=0.5, delta=0.0)[1]
  words = ' '.join(not_protected(document).items)
  assert 'this is left: epsilon = 5, a factor of 149, and a chance of' in words
  assert document['groups'][1]['delta'] < 1e-13  # for the ends of the noise


def test_where_nothing_is_left_it_says_so():
  words = ' '.join(not_protected(make(epsilon=40.0)[1]).items)
  assert 'For ten of them this is left: no bound.' in words


def test_every_unit_and_relation_has_words():
  for unit in ('rating', 'user'):
    for relation in ('replace', 'add_remove'):
      document = make()[1] | {'unit': unit, 'relation': relation}
      assert len(wording.sections(document)) == 10
      assert wording.summary(document)


@pytest.mark.parametrize('epsilon', [0, 1e-300, 1e-9, 700.0, 1e5, 1e300])
@pytest.mark.parametrize('delta', [0, 5e-324, 1e-300, 1e-4, 0.999])
def test_no_number_is_too_small_or_large(epsilon, delta):
  document = make()[1] | {'epsilon': epsilon, 'delta': delta}
  shown = ' '.join(map(str, wording.sections(document)))
  shown += wording.summary(document)
  assert not re.search(r'nan|inf(inity)?\b|e\+', shown, re.IGNORECASE)


def test_pure_privacy_has_no_chance_of_failure():
  document = make('local_mf', epsilon=1.0, delta=0.0)[1]
  words = ' '.join(strength(document).paragraphs)
  assert 'outright' not in words
  assert 'chance' not in words


def test_a_large_delta_is_pointed_out():
  assert 'not small' in ' '.join(
    strength(make()[1] | {'delta': 0.01}).paragraphs
  )


def test_notices():
  kinds = lambda document: [n.kind for n in wording.notices(document)]
  assert kinds(make()[1]) == ['proved']
  assert kinds(make(epsilon=14.0)[1]) == ['weak']
  assert kinds(make(variant='paper')[1]) == ['claimed']
  assert kinds(make('nonprivate', 'none')[1]) == ['none']
  # Nothing about a run with a known seed is green.
  assert kinds(make(seed=1)[1]) == ['experiment', 'experiment']
  assert kinds(make(variant='paper', seed=1)[1]) == ['experiment', 'claimed']
