"""The ledger: arithmetic, what it says, and `launch.train` with it."""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stated import FACTS

from dpmf_jax import accounting, files
from dpmf_jax.accounting import (
  calibrate_noise_multiplier,
  encoding,
  events,
  filters,
  ledger,
  ledger_database,
)
from dpmf_jax.ratings import writing
from dpmf_jax.ratings.synthetic import synthetic

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'made-up.db'


def gaussian_of(epsilon, count=1):
  return events.Gaussian(
    calibrate_noise_multiplier(epsilon=epsilon, delta=1e-6, count=count), count
  )


def spend(path, event, **facts):
  if not path.exists():
    facts = {'budget_epsilon': 100, **facts}
  return ledger.spend(path, event, **{**FACTS, **facts})


def test_the_ends_of_noise_of_all_runs_have_their_part(path):
  """Each leaves a thousandth of delta: five fit, whatever the budget is."""
  run = events.Gaussian(1e3, 1, FACTS['delta'] / 1000)
  for _ in range(5):
    spend(path, run)
  with pytest.raises(
    ledger.BudgetExceeded, match=r'cost more than 0\.005 of d'
  ):
    spend(path, run)
  assert len(ledger.entries(path)) == 5
  spend(path, events.Gaussian(1e3))


# The arithmetic.


def test_it_adds_up_by_exact_composition(path):
  parts = [
    gaussian_of(0.5, 7),
    gaussian_of(1.0),
    events.Composed((events.Gaussian(9.0, 3),)),
  ]
  for part in parts:
    spend(path, part)
  together = accounting.epsilon(events.Composed(tuple(parts)), 1e-6)
  assert ledger.total(path) == together
  assert together < sum(accounting.epsilon(part, 1e-6) for part in parts)
  assert ledger.total(path, 1e-3) == accounting.epsilon(
    events.Composed(tuple(parts)), 1e-3
  )
  assert [entry.event for entry in ledger.entries(path)] == parts


def test_other_mechanisms_add_up_by_the_accountants_best_rule(path):
  parts = (
    events.Laplace(5.0, 3),
    events.RandomizedResponse(0.2, 2),
    events.Pure(0.1),
    events.L2Laplace(8.0, 2, dimension=4),
    gaussian_of(0.5),
  )
  for part in parts:
    spend(path, part, budget_epsilon=3)
  assert [entry.event for entry in ledger.entries(path)] == list(parts)
  together = accounting.epsilon(events.Composed(parts), 1e-6)
  assert ledger.total(path) == together < 3
  with pytest.raises(ledger.BudgetExceeded, match='would still fit'):
    spend(path, events.Pure(2.9))


def test_an_event_must_hold_for_the_relation(path):
  event = events.SubsampledGaussian(2.0, 0.1, 10)  # Poisson: add/remove only
  with pytest.raises(ValueError, match="relation must be 'add_remove'"):
    spend(path, event)
  assert not path.exists()
  spend(path, event, relation='add_remove')
  assert ledger.entries(path)[0].event == event


@pytest.mark.parametrize('epsilon', [1e-3, 0.1, 1.0, 3.0, 7.7, 100.0])
def test_a_run_calibrated_to_the_whole_budget_fits(path, epsilon):
  spend(path, gaussian_of(epsilon, 60), budget_epsilon=epsilon)
  with pytest.raises(ledger.BudgetExceeded, match='nothing is left'):
    spend(path, gaussian_of(epsilon / 1000))
  assert len(ledger.entries(path)) == 1


def test_a_refusal_has_the_arithmetic_and_writes_nothing(path):
  for _ in range(2):
    spend(path, gaussian_of(1.0), budget_epsilon=2)
  before = path.read_bytes()
  with pytest.raises(ledger.BudgetExceeded) as refused:
    spend(path, gaussian_of(1.5))
  message = str(refused.value)
  assert path.read_bytes() == before
  assert '\n' not in message
  runs = gaussian_of(1.0), gaussian_of(1.0), gaussian_of(1.5)
  rule = filters.rule(runs[0], budget=2, delta=1e-6)
  counted = lambda runs: filters.counted(runs, delta=1e-6, by=rule)
  before, together = counted(runs[:2]), counted(runs)
  assert before == pytest.approx(1.455, rel=1e-3)
  for words in (
    str(path),
    f'2 releases of epsilon {before + 5e-4:.3f}',
    'this run is 1.5,',
    f'together they are {together + 5e-4:.3f}',
    'budget of 2 (all at delta 1e-6)',
  ):
    assert words in message

  # What it says would still fit does, and a little more does not.
  fits = float(message.split('with epsilon ')[1].split()[0])
  with pytest.raises(ledger.BudgetExceeded):
    spend(path, gaussian_of(fits * 1.001))
  spend(path, gaussian_of(fits))
  assert 2 * 0.999 < ledger.total(path) <= 2


def test_the_first_use_needs_a_budget(path):
  with pytest.raises(ValueError, match='is new: say with budget_epsilon'):
    ledger.spend(path, gaussian_of(1.0), **FACTS)
  assert not path.exists()
  with pytest.raises(ValueError, match='budget_epsilon must be a number'):
    spend(path, gaussian_of(1.0), budget_epsilon='none')


def test_without_a_budget_it_only_keeps_count(path):
  for _ in range(3):
    with pytest.warns(UserWarning, match=ledger.NOT_VALID):
      spend(path, gaussian_of(5.0), budget_epsilon='unlimited')
  total = ledger.total(path)
  assert ledger.header(path).budget_epsilon == 'unlimited'
  assert ledger.summary(path).startswith('ledger: 3 releases, epsilon ')
  assert ledger.summary(path).endswith(
    'spent at delta 1e-6; no budget: not valid if later runs were chosen '
    'after seeing earlier ones'
  )
  assert float(ledger.summary(path).split()[4]) == pytest.approx(total, abs=0.1)
  statement = ledger.statement(path)
  assert statement['epsilon'] == total
  assert statement['adaptive_epsilon'] is None
  for words in (statement['caveat'], statement['holds']):
    assert ledger.NOT_VALID in words


def test_summary(path):
  spend(path, gaussian_of(1.0), budget_epsilon=3)
  assert ledger.summary(path) == (
    'ledger: 1 release, epsilon 1 of 3 spent at delta 1e-6; if later runs are '
    'chosen after seeing earlier ones, what holds is the budget, epsilon 3 at '
    'delta 1e-6'
  )
  statement = ledger.statement(path)
  assert statement['epsilon'] == statement['counted_epsilon'] <= 1
  assert statement['adaptive_epsilon'] == 3


# Other budgets.


def test_a_lower_budget_refuses_more_and_the_first_one_holds(path):
  spend(path, gaussian_of(1.0), budget_epsilon=3)
  ledger.set_budget(path, 1.5, reason='less is enough')
  with pytest.raises(ledger.BudgetExceeded, match=r'budget of 1\.5'):
    spend(path, gaussian_of(1.4))
  spend(path, gaussian_of(0.5), budget_epsilon=1.5)
  ledger.set_budget(path, 3, reason='as it was')
  ledger.set_budget(path, 0.1, reason='no more')
  statement = ledger.statement(path)
  assert statement['adaptive_epsilon'] == 3
  assert statement['budget_epsilon'] == 0.1
  assert statement['left_epsilon'] == 0
  assert ledger.summary(path).endswith(
    'what holds is the budget it was begun with, epsilon 3 at delta 1e-6'
  )


@pytest.mark.parametrize('budget', [5, 'unlimited'])
@pytest.mark.filterwarnings('ignore:.*has no budget')
def test_a_budget_that_was_raised_is_not_said_to_hold(path, budget):
  spend(path, gaussian_of(2.0), budget_epsilon=3)
  ledger.set_budget(path, budget, reason='a second study')
  spend(path, gaussian_of(2.5))
  assert 3 < ledger.total(path) < 5
  assert ledger.statement(path)['adaptive_epsilon'] is None
  assert ledger.summary(path).endswith(
    'the budget was raised after 1 release: epsilon 3 holds for what was '
    f'released before that, and the total of all is {ledger.NOT_VALID}'
  )
  # That cannot be taken back.
  ledger.set_budget(path, 3, reason='as it was')
  assert ledger.statement(path)['adaptive_epsilon'] is None


@pytest.mark.filterwarnings('ignore:.*has no budget')
def test_a_budget_that_came_late_refuses_and_does_not_hold(path):
  spend(path, gaussian_of(1.0), budget_epsilon='unlimited')
  ledger.set_budget(path, 2, reason='enough')
  with pytest.raises(ledger.BudgetExceeded):
    spend(path, gaussian_of(1.9))
  spend(path, gaussian_of(0.5))
  assert ledger.summary(path).endswith(
    f'begun without a budget: {ledger.NOT_VALID}'
  )


@pytest.mark.parametrize(
  ('budget', 'reason', 'words'),
  [
    (3, 'the same', r'has budget_epsilon=3\.0 already'),
    (5, ' \n', "reason='' must say why"),
    (-1, 'less', 'budget_epsilon must be >= 0'),
    ('lots', 'more', 'budget_epsilon must be a number'),
  ],
)
def test_a_change_of_nothing_or_without_a_reason_is_none(
  path, budget, reason, words
):
  spend(path, gaussian_of(1.0), budget_epsilon=3)
  before = path.read_bytes()
  with pytest.raises(ValueError, match=words):
    ledger.set_budget(path, budget, reason=reason)
  assert path.read_bytes() == before
  with pytest.raises(ValueError, match='is empty: not a ledger yet'):
    ledger.set_budget(path.with_name('other'), 3, reason='new')
  assert not path.with_name('other').exists()


def test_a_run_that_was_charged_goes_on_whatever_the_budget_is_now(path):
  first = spend(path, gaussian_of(2.0), budget_epsilon=3, entry_id='run')
  ledger.set_budget(path, 1, reason='no more')
  again = spend(path, gaussian_of(2.0), budget_epsilon=3, entry_id='run')
  assert again == first


def test_what_it_was_begun_with_stays_if_constants_change(path, monkeypatch):
  spend(path, gaussian_of(1.0), budget_epsilon=3)
  spend(path, events.Pure(0.2))
  before = ledger.statement(path)
  monkeypatch.setattr(filters, 'MAIN_SHARE', 0.5)
  monkeypatch.setattr(filters, 'MIXED_SHARE', 0.4)
  assert ledger.statement(path) == before


# Files of earlier versions.


def old_file(path, budget=3.0, schema=2, change=lambda text: text):
  """What an earlier version wrote for two releases."""
  facts = {k: v for k, v in FACTS.items() if k != 'dataset'}
  lines = [
    facts
    | {
      'schema': f'dpmf_jax-ledger-{schema}',
      'dataset': 'made-up',
      'digest': 'a',
      'budget_epsilon': budget,
      'created': '2026-01-01T00:00:00+00:00',
    }
  ]
  for name in ('one', 'two'):
    event = gaussian_of(1.0)
    lines.append(
      facts
      | {
        'id': name,
        'time': '2026-01-02T00:00:00+00:00',
        'system': 'power_mf',
        'variant': 'sound',
        'status': 'proved',
        'event': encoding.encode(event),
        'epsilon': accounting.epsilon(event, 1e-6),
        'digest': 'a',
        'what': '/runs/1',
      }
    )
  lines[0] = {'schema': lines[0].pop('schema'), **lines[0]}
  path.write_text(change(''.join(json.dumps(line) + '\n' for line in lines)))
  return path


def test_a_file_of_lines_is_imported_and_renamed(path, tmp_path):
  old = old_file(tmp_path / 'old.ledger')
  content = old.read_bytes()
  with pytest.raises(OSError, match=f'--import_ledger={old} --ledger=NEW'):
    spend(old, gaussian_of(0.1))
  ledger.import_lines(old, path)
  assert not old.exists()
  assert (tmp_path / 'old.ledger.imported').read_bytes() == content
  one, two = ledger.entries(path)
  assert (one.id, two.id) == ('one', 'two')
  assert (one.what, one.time) == ('/runs/1', '2026-01-02T00:00:00+00:00')
  assert one.event == gaussian_of(1.0)
  assert ledger.header(path).imported == files.sha256(content)
  assert ledger.statement(path)['adaptive_epsilon'] == 3
  # A run that it has an entry of goes on.
  assert spend(path, gaussian_of(1.0), digest='a', entry_id='two') == two
  spend(path, gaussian_of(1.0), digest='a')
  old_file(old)
  with pytest.raises(ValueError, match='is a ledger already'):
    ledger.import_lines(old, path)
  assert old.exists()
  assert len(ledger.entries(path)) == 3


@pytest.mark.filterwarnings('ignore:.*has no budget')
def test_an_old_ledger_without_a_budget_is_unlimited(path, tmp_path):
  ledger.import_lines(old_file(tmp_path / 'old', None, 1), path)
  assert ledger.header(path).budget_epsilon == 'unlimited'
  assert ledger.summary(path).endswith(f'no budget: {ledger.NOT_VALID}')
  spend(path, gaussian_of(200.0), digest='a')
  with pytest.raises(ValueError, match="budget_epsilon='unlimited'"):
    spend(path, gaussian_of(1.0), digest='a', budget_epsilon=3)


def test_an_old_ledger_with_a_budget_is_read_and_said_to_be_old(path, tmp_path):
  ledger.import_lines(old_file(tmp_path / 'old', 3.0, 1), path)
  spend(path, gaussian_of(1.0), digest='a', budget_epsilon=3)
  with pytest.raises(ledger.BudgetExceeded):
    spend(path, gaussian_of(2.9), digest='a')
  assert ledger.statement(path)['adaptive_epsilon'] is None
  assert ledger.summary(path).endswith(
    f'begun by an earlier version: {ledger.NOT_VALID}'
  )


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (lambda s: s.replace('"Gaussian"', '"Unheard"'), 'line 2: event .Unheard.'),
    (lambda s: s.replace('ledger-2', 'ledger-9'), 'line 1: schema must be'),
    (lambda s: s.replace('proved', 'claimed'), 'line 2: status must be'),
    (lambda s: s.replace('"what"', '"where"'), 'line 2: what is missing'),
    (lambda s: s.replace('"count": 1', '"count": 2'), 'the line was altered'),
    (lambda s: s.replace('"count"', '"number"'), "line 2: event 'Gaussian'"),
    (lambda s: s.replace('"two"', '"one"'), 'line 3: a second one with the id'),
    (lambda s: s.replace('"two"', '7'), 'line 3: id must be a string'),
    (lambda s: s.replace('1e-06', '0.5', 1), 'line 2: delta must be 0.5'),
    (lambda s: s + '\n', 'line 4: not JSON'),
    (lambda s: s + '[]\n', 'line 4: must be a JSON object'),
    (lambda s: s + '[' * 100_000 + '\n', 'line 4: '),
    (lambda s: s.split('\n', 1)[1], 'line 1: schema must be'),
    (lambda s: s.split('\n', 1)[0], 'has no releases'),
    (lambda s: s[:-2], 'line 3: the last line is cut off'),
    (lambda s: '', 'line 1: '),
    (lambda s: '\0' * 40 + s, 'line 1: not JSON'),
  ],
)
def test_a_bad_line_is_named_and_nothing_is_imported(
  path, tmp_path, change, words
):
  old = old_file(tmp_path / 'old', change=change)
  with pytest.raises(ValueError, match=words) as error:
    ledger.import_lines(old, path)
  assert str(old) in str(error.value)
  assert [each.name for each in tmp_path.iterdir()] == ['old']


# Runs that are chosen after seeing earlier ones.


NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


def delta_reached(mus, stops, stated):
  """E (1 - e^(stated - loss))+ of whoever stops when the loss passes `stops`.

  By quadrature. The loss after some Gaussian runs is a walk with steps
  N(mu^2/2, mu^2); stated[t] is the epsilon that is stated after run t.
  """
  losses, masses, spent, reached = np.zeros(1), np.ones(1), 0.0, 0.0

  def part(low, high):
    """Losses in an interval, and their masses after one more run."""
    at = (low + high) / 2 + (high - low) / 2 * NODES
    steps = (at[:, None] - losses - mu**2 / 2) / mu
    density = np.exp(-(steps**2) / 2) @ masses / mu / np.sqrt(2 * np.pi)
    return at, density * WEIGHTS * max(high - low, 0) / 2

  def beyond(low, high, epsilon):
    at, mass = part(max(low, epsilon), high)
    return float(-np.expm1(np.minimum(epsilon - at, 0)) @ mass)

  for mu, stop, epsilon in zip(mus, stops, stated, strict=True):
    spent += mu**2
    low, high = (spent / 2 + side * 10 * spent**0.5 for side in (-1, 1))
    stop = min(stop, high)
    reached += beyond(stop, high, epsilon)
    last = beyond(low, stop, epsilon)  # counts if this was the last run
    losses, masses = part(low, stop)
  return reached + last


DOUBLING = [0.05 * 2 ** (run / 2) for run in range(36)]  # mu^2 doubles


@pytest.mark.filterwarnings('ignore:.*has no budget')
@pytest.mark.parametrize(
  ('delta', 'reached'), [(0.01, 0.0966), (0.001, 0.0231)]
)
def test_a_total_is_no_bound_for_who_stops_when_the_loss_passes_it(
  path, delta, reached
):
  # Why there are budgets, and what is printed without one.
  printed = []
  for mu in DOUBLING:
    spend(
      path, events.Gaussian(1 / mu), delta=delta, budget_epsilon='unlimited'
    )
    printed.append(ledger.total(path))
  found = delta_reached(DOUBLING, printed, printed)
  assert found == pytest.approx(reached, rel=0.001)
  assert ledger.NOT_VALID in ledger.summary(path)
  # The same runs without looking are as stated.
  never = [np.inf] * len(DOUBLING)
  found = delta_reached(DOUBLING, never, printed)
  assert found == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize('delta', [0.01, 0.001])
@pytest.mark.parametrize('budget', [1.0, 30.0])
def test_with_a_budget_the_same_adversary_stays_within_delta(
  path, delta, budget
):
  mus, printed = [], []
  most = 0.9999 * filters.MAIN_SHARE
  left = accounting.gaussian.mu_of(budget, most * delta) ** 2
  while left > 0:
    mu = DOUBLING[len(mus)]
    if 3 * mu**2 > left:  # the next one would not fit: all that is left
      mu = left**0.5
    spend(path, events.Gaussian(1 / mu), delta=delta, budget_epsilon=budget)
    mus.append(mu)
    printed.append(ledger.statement(path)['counted_epsilon'])
    left = 0 if mu**2 == pytest.approx(left) else left - mu**2
  with pytest.raises(ledger.BudgetExceeded):
    spend(path, events.Gaussian(10 / mu), delta=delta)
  stated = [budget] * len(mus)
  assert ledger.statement(path)['adaptive_epsilon'] == budget
  never = [np.inf] * len(mus)
  for stops in (printed, stated, never):
    assert delta_reached(mus, stops, stated) <= delta
  assert delta_reached(mus, never, stated) > 0.999 * most * delta


def test_a_mixture_is_refused_though_its_total_would_fit(path):
  first, second = gaussian_of(2.0), events.Pure(1.0)
  assert accounting.epsilon(events.Composed((first, second)), 1e-6) < 3
  spend(path, first, budget_epsilon=3)
  with pytest.raises(
    ledger.BudgetExceeded, match='may be chosen after seeing others: more'
  ):
    spend(path, second)
  spend(path, events.Pure(0.25))
  assert ledger.statement(path)['adaptive_epsilon'] == 3


@pytest.mark.parametrize('epsilons', [[1.5, 1.5], [0.1, 0.2], [0.1] * 3])
def test_pure_epsilons_that_add_up_to_the_budget_fit(path, epsilons):
  for epsilon in epsilons:
    spend(path, events.Pure(epsilon), budget_epsilon=round(sum(epsilons), 9))
  with pytest.raises(ledger.BudgetExceeded):
    spend(path, events.Pure(1e-9))


def test_a_dry_run_spends_nothing(path):
  spend(path, gaussian_of(2.0), budget_epsilon=3, dry_run=True)
  assert not path.exists()
  spend(path, gaussian_of(2.0), budget_epsilon=3)
  with pytest.raises(ledger.BudgetExceeded):
    spend(path, gaussian_of(2.5), dry_run=True)


@pytest.mark.parametrize(
  'event',
  [
    events.ClaimedGaussianMF(0.3, 0.01, 10),
    events.ClaimedPure(0.3),
    events.Composed((events.Gaussian(2.0), events.ClaimedPure(0.3))),
    events.Composed(
      (
        events.Gaussian(2.0),
        events.Composed((events.ClaimedGaussianMF(0.3, 0.01, 1),)),
      )
    ),
  ],
)
def test_a_claim_is_not_added_to_a_proof(path, event):
  with pytest.raises(ValueError, match='claim cannot be part of a proof'):
    spend(path, event)
  assert not path.exists()


def test_infinite_is_not_a_cost(path):
  # mu = 1e160: epsilon is no float any more.
  with pytest.raises(ValueError, match='not private'):
    spend(path, events.Composed((events.Gaussian(1e-100, 10**120),)))
  assert not path.exists()


# Rows.


def test_it_only_grows(path):
  before = []
  for _ in range(4):
    spend(path, gaussian_of(0.1))
    rows = ledger_database.look(path)
    assert rows[: len(before)] == before
    before = rows
  assert len({entry.id for entry in ledger.entries(path)}) == 4


def test_events_come_back_bit_for_bit():
  rng = np.random.default_rng(0)
  for _ in range(200):
    event = events.Gaussian(
      float(np.exp(rng.normal(0, 30))), int(rng.integers(10**9))
    )
    encoded = json.loads(json.dumps(encoding.encode(events.Composed((event,)))))
    assert encoding.decode(encoded) == events.Composed((event,))


def test_every_event_of_the_accountant_can_be_written(monkeypatch):
  # A kind of event that did not exist when the ledger was written.
  import dataclasses

  @dataclasses.dataclass(frozen=True)
  class Subsampled:
    inner: events.Gaussian
    rates: tuple[float, ...]
    name: str | None = None

  monkeypatch.setattr(events, 'Subsampled', Subsampled, raising=False)
  event: Any = Subsampled(events.Gaussian(1.5, 4), (0.1, 0.25))
  encoded = json.loads(json.dumps(encoding.encode(event)))
  assert encoding.decode(encoded) == event
  monkeypatch.delattr(events, 'Subsampled')
  with pytest.raises(ValueError, match="'Subsampled' is not known"):
    encoding.decode(encoded)
  with pytest.raises(ValueError, match='cannot be written down'):
    encoding.encode(event)


@pytest.mark.parametrize(
  'name', ['replace', 'Event', '__loader__', 'Real', 'dataclass', 'nothing']
)
def test_only_events_are_made_from_a_file(name):
  with pytest.raises(ValueError, match='is not known'):
    encoding.decode({name: {}})


def test_an_event_with_other_fields_is_refused_in_one_line():
  with pytest.raises(ValueError, match=r"'Gaussian' has no field '\\ncount'$"):
    encoding.decode({'Gaussian': {'noise_multiplier': 9.0, '\ncount': 1}})


@pytest.mark.parametrize(
  ('facts', 'words'),
  [
    ({'unit': 'user'}, "counts with unit='rating', this run has 'user'"),
    ({'relation': 'add_remove'}, "relation='replace'"),
    ({'delta': 1e-5}, 'counts with delta=1e-06, this run has 1e-05'),
    ({'budget_epsilon': 4}, r'has budget_epsilon=3\.0, this run has 4\.0: lea'),
    ({'budget_epsilon': 'unlimited'}, "this run has 'unlimited': leave it out"),
    ({'dataset': 'other', 'digest': 'b'}, "ledger of 'made-up'"),
    ({'dataset': 'other', 'digest': ''}, "ledger of 'made-up'"),
    ({'unit': 'people'}, 'unit must be one of'),
    ({'relation': None}, 'relation must be one of'),
    ({'delta': 0.0}, r'delta must be in \(0, 1\)'),
    ({'budget_epsilon': -1}, 'budget_epsilon must be >= 0'),
    ({'budget_epsilon': float('nan')}, 'budget_epsilon must be finite'),
  ],
)
def test_ledgers_are_not_mixed(path, facts, words):
  spend(path, gaussian_of(0.1), budget_epsilon=3, digest='a')
  before = path.read_bytes()
  with pytest.raises(ValueError, match=words):
    spend(path, gaussian_of(0.1), **{'digest': 'a', **facts})
  assert path.read_bytes() == before


@pytest.mark.parametrize('digests', [('', 'b'), ('a', ''), ('', '')])
def test_no_digest_is_no_proof_of_the_same_ratings(path, digests):
  first, second = digests
  spend(path, gaussian_of(0.1), digest=first, entry_id='run')
  before = path.read_bytes()
  with pytest.raises(ValueError, match="ledger of 'made-up'"):
    spend(path, gaussian_of(0.1), digest=second, dataset='other')
  if first != second:
    # A release of unknown ratings is not the one that was paid for.
    with pytest.raises(ValueError, match='release about other ratings'):
      spend(path, gaussian_of(0.1), digest=second, entry_id='run')
  assert path.read_bytes() == before


def test_the_same_people_may_have_other_ratings(path, recwarn):
  spend(path, gaussian_of(0.1), digest='a')
  spend(path, gaussian_of(0.1), digest='a', dataset='same file, other name')
  spend(path, gaussian_of(0.1))
  assert not recwarn
  with pytest.warns(UserWarning, match='ratings differ from those of earlier'):
    spend(path, gaussian_of(0.1), digest='b')
  assert len(ledger.entries(path)) == 4


def test_a_budget_may_be_left_out_or_repeated(path):
  spend(path, gaussian_of(0.1), budget_epsilon=np.float32(3))
  spend(path, gaussian_of(0.1), budget_epsilon=3)
  spend(path, gaussian_of(0.1))
  assert ledger.header(path).budget_epsilon == 3


def test_an_id_is_charged_once(path):
  first = spend(path, gaussian_of(2.0), budget_epsilon=3, entry_id='run')
  again = spend(path, gaussian_of(2.0), budget_epsilon=3, entry_id='run')
  assert again == first
  assert len(ledger.entries(path)) == 1
  with pytest.raises(ValueError, match='run is the id of Gaussian'):
    spend(path, gaussian_of(1.0), entry_id='run')
  with pytest.raises(ledger.BudgetExceeded):
    spend(path, gaussian_of(2.5), entry_id='another')


# Says so when it is about to wait for the database.
_TRAIN = """
import runpy
from dpmf_jax.accounting import ledger_database
transacted = ledger_database._transacted
def said(*arguments, **options):
  print('waits', flush=True)
  return transacted(*arguments, **options)
ledger_database._transacted = said
runpy.run_module('launch.train', run_name='__main__', alter_sys=True)
"""


# launch.train.


@pytest.fixture(scope='module')
def ratings_file(tmp_path_factory):
  path = tmp_path_factory.mktemp('ledger') / 'mine.csv'
  writing.write(
    synthetic(num_users=40, num_items=30, num_ratings=500, seed=3), path
  )
  return path


def train(launch, ratings_file, book, output, *flags):
  return launch(
    'train', f'--ratings={ratings_file}', f'--output={output}', '--steps=5',
    '--system=gaussian_mf', f'--ledger={book}', *flags,
  )  # fmt: skip


def test_training_is_charged_and_refused(launch, ratings_file, path, tmp_path):
  first, second = tmp_path / 'first', tmp_path / 'second'
  done = train(
    launch, ratings_file, path, first, '--epsilon=2', '--budget_epsilon=3'
  )
  assert done.returncode == 0, done.stderr
  line = 'ledger: 1 release, epsilon 2 of 3 spent at delta 1e-6; '
  assert line in done.stdout
  assert 'what holds is the budget, epsilon 3 at delta 1e-6\n' in done.stdout
  (entry,) = ledger.entries(path)
  document = files.read_json(first / 'certificate.json')
  assert entry.epsilon == document['epsilon']
  assert entry.event == encoding.decode(document['event'])
  assert (entry.system, entry.variant) == ('gaussian_mf', 'sound')
  header = ledger.header(path)
  assert (header.unit, header.relation) == ('rating', 'add_remove')
  assert entry.what == str(first)
  assert 'ledger' not in json.dumps(document)

  before = path.read_bytes()
  for output, more in ((second, ()), (first, ('--overwrite',))):
    done = train(launch, ratings_file, path, output, '--epsilon=2.5', *more)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for words in (
      'refused: ', '1 release of epsilon 2,', 'this run is 2.5,',
      'together they are 3.3', 'budget of 3 (all at delta 1e-6)',
    ):  # fmt: skip
      assert words in done.stderr
    assert path.read_bytes() == before
  # What was paid for is still there, and the refused run is not.
  assert files.read_json(first / 'certificate.json') == document
  assert (first / 'model.safetensors').exists()
  assert [p for p in second.rglob('*') if p.is_file()] == []

  # A refused run is no interrupted one: the folder may be used otherwise.
  done = train(launch, ratings_file, path, second, '--epsilon=1')
  assert done.returncode == 0, done.stderr
  assert 'ledger: 2 releases, epsilon 2.' in done.stdout
  assert 2 < ledger.total(path) <= 3


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--epsilon=1', '--budget_epsilon=4'], 'has --budget_epsilon=3.0, this'),
    (
      ['--variant=paper', '--epsilon_per_step=0.3', '--relation=replace'],
      'a claim cannot be added to a proof',
    ),
    (['--system=nonprivate'], 'its epsilon is infinite'),
  ],
)
def test_wrong_input_spends_nothing(
  launch, ratings_file, path, tmp_path, flags, words
):
  spend(path, gaussian_of(1.0), relation='add_remove', dataset='mine.csv',
        budget_epsilon=3)  # fmt: skip
  before = path.read_bytes()
  done = train(launch, ratings_file, path, tmp_path / 'run', *flags)
  assert done.returncode == 2
  assert len(done.stderr.splitlines()) == 1, done.stderr
  assert words in done.stderr
  assert path.read_bytes() == before
  assert not (tmp_path / 'run' / 'model.safetensors').exists()


def test_training_without_a_budget_is_said_not_to_hold(
  launch, ratings_file, path, tmp_path
):
  flags = launch, ratings_file, path, tmp_path / 'run', '--epsilon=1'
  for wrong, words in (
    ((), 'is new: say with --budget_epsilon'),
    (['--budget_epsilon=lots'], "must be a number or 'unlimited'"),
  ):
    done = train(*flags, *wrong)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert words in done.stderr
  done = train(*flags, '--budget_epsilon=unlimited')
  assert done.returncode == 0, done.stderr
  assert f'has no budget: its total is {ledger.NOT_VALID}' in done.stderr
  assert f'no budget: {ledger.NOT_VALID}\n' in done.stdout


def test_a_budget_needs_a_ledger(launch, ratings_file, tmp_path):
  done = launch(
    'train', f'--ratings={ratings_file}', f'--output={tmp_path / "run"}',
    '--epsilon=1', '--budget_epsilon=3',
  )  # fmt: skip
  assert done.returncode == 2
  assert '--budget_epsilon=3.0 needs a ledger' in done.stderr


def test_a_run_is_charged_once_however_often_it_is_started(
  launch, ratings_file, path, tmp_path
):
  # It dies after its first step: charged, and then never again.
  for _ in range(2):
    done = train(
      launch, ratings_file, path, tmp_path / 'run', '--epsilon=2',
      '--budget_epsilon=3', '--step_size=3e38',
    )  # fmt: skip
    assert done.returncode == 2
    assert 'training diverged' in done.stderr
    assert len(ledger.entries(path)) == 1


def test_killed_before_and_after_the_line_it_is_charged_once(
  launch, launch_killed, ratings_file, path, tmp_path
):
  output = tmp_path / 'run'
  checkpoint = output / 'private' / 'checkpoint.safetensors'
  flags = ['--system=gaussian_mf', '--epsilon=2', '--steps=30']
  flags.append('--report_every=10')
  first_use = '--budget_epsilon=3'
  files_of_run = f'--ratings={ratings_file}', f'--output={output}'
  more = f'--ledger={path}', *flags, first_use

  # Somebody else writes: the run has to wait, and has not begun.
  with sqlite3.connect(path, isolation_level=None) as held:
    held.execute('BEGIN IMMEDIATE')
    process = subprocess.Popen(
      [sys.executable, '-c', _TRAIN, *files_of_run, *more],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert b'waits\n' in iter(process.stdout.readline, b'')
    leaves, metadata = files.load_leaves(checkpoint)
    assert leaves['step'] == 0
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
  held.close()
  assert ledger_database.look(path) == []

  # Now it is charged, and killed once it has drawn noise.
  launch_killed(*files_of_run, *more)
  assert files.load_leaves(checkpoint)[0]['step'] == 10
  (entry,) = ledger.entries(path)
  assert not (output / 'certificate.json').exists()
  assert entry.id == metadata['run']
  assert files.load_leaves(checkpoint)[1]['run'] == entry.id
  np.testing.assert_array_equal(
    files.load_leaves(checkpoint)[0]['key'], leaves['key']
  )

  done = train(launch, ratings_file, path, output, *flags, first_use)
  assert done.returncode == 0, done.stderr
  assert 'going on from step' in done.stdout
  assert ledger.entries(path) == [entry]


def test_a_run_whose_noise_can_be_removed_is_not_charged(
  launch, ratings_file, path, tmp_path
):
  done = train(
    launch, ratings_file, path, tmp_path / 'run', '--epsilon=2', '--seed=7',
    '--budget_epsilon=3',
  )  # fmt: skip
  assert done.returncode == 2
  assert '--seed is for experiments' in done.stderr
  assert not path.exists()


def test_all_digits_of_a_budget_are_said(path):
  spend(path, gaussian_of(1.0), budget_epsilon=3.0000049)
  assert 'budget, epsilon 3.0000049 at delta 1e-6' in ledger.summary(path)


def test_runs_at_once_do_not_spend_the_same_rest(ratings_file, path, tmp_path):
  runs = [
    subprocess.Popen(
      [sys.executable, '-m', 'launch.train', f'--ratings={ratings_file}',
       f'--output={tmp_path / str(number)}', '--steps=5', '--epsilon=2.5',
       '--system=gaussian_mf', f'--ledger={path}', '--budget_epsilon=3'],
      cwd=ROOT,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    for number in range(2)
  ]  # fmt: skip
  assert sorted(run.wait() for run in runs) == [0, 1]
  assert len(list(tmp_path.glob('*/model.safetensors'))) == 1
  assert len(ledger.entries(path)) == 1
