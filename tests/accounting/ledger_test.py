"""The ledger: arithmetic, file, locks, crashes, and `launch.train` with it."""

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmf_jax import accounting, files
from dpmf_jax.accounting import (
  calibrate_noise_multiplier,
  encoding,
  events,
  filters,
  ledger,
  ledger_file,
)
from dpmf_jax.ratings import writing
from dpmf_jax.ratings.synthetic import synthetic

ROOT = Path(__file__).resolve().parents[2]
FACTS = {
  'delta': 1e-6,
  'unit': 'rating',
  'relation': 'replace',
  'dataset': 'made-up',
}


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'made-up.ledger'


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


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


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
  with pytest.raises(ledger.BudgetExceeded, match='use more noise'):
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
  counted = lambda runs: filters.counted(runs, budget=2, delta=1e-6)
  before, together = counted(runs[:2]), counted(runs)
  assert before == pytest.approx(1.455, rel=1e-3)
  for words in (
    str(path),
    f'2 releases of epsilon {before + 5e-4:.3f}',
    'this run is 1.5,',
    f'together they are {together + 5e-4:.3f}',
    'budget of 2 (all at delta 1e-06)',
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
  assert path.read_bytes() == b''
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
    'spent at delta 1e-06; no budget: not valid if later runs were chosen '
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
    'ledger: 1 release, epsilon 1 of 3 spent at delta 1e-06; if later runs are '
    'chosen after seeing earlier ones, what holds is the budget, epsilon 3 at '
    'delta 1e-06'
  )
  statement = ledger.statement(path)
  assert statement['epsilon'] == statement['counted_epsilon'] <= 1
  assert statement['adaptive_epsilon'] == 3


def test_a_budget_that_was_lowered_by_hand_is_not_said_to_hold(path):
  spend(path, gaussian_of(1.0), budget_epsilon=3)
  text = path.read_text()
  path.write_text(
    text.replace('"budget_epsilon": 3.0', '"budget_epsilon": 0.5')
  )
  assert ledger.statement(path)['adaptive_epsilon'] is None
  assert ledger.summary(path).endswith(ledger.NOT_VALID)


def as_before(path, budget):
  """Makes a ledger what the version without required budgets wrote."""
  head, rest = path.read_text().split('\n', 1)
  values = json.loads(head)
  values |= {'schema': 'dpmf_jax-ledger-1', 'budget_epsilon': budget}
  path.write_text(json.dumps(values) + '\n' + rest)


def test_an_old_ledger_without_a_budget_is_unlimited(path):
  spend(path, gaussian_of(1.0))
  as_before(path, None)
  assert ledger.header(path).budget_epsilon == 'unlimited'
  assert ledger.summary(path).endswith(f'no budget: {ledger.NOT_VALID}')
  with pytest.warns(UserWarning, match=ledger.NOT_VALID):
    spend(path, gaussian_of(200.0))
  with pytest.raises(ValueError, match="budget_epsilon='unlimited'"):
    spend(path, gaussian_of(1.0), budget_epsilon=3)


def test_an_old_ledger_with_a_budget_is_read_and_said_to_be_old(path):
  spend(path, gaussian_of(1.0))
  as_before(path, 3.0)
  spend(path, gaussian_of(1.0), budget_epsilon=3)
  with pytest.raises(ledger.BudgetExceeded):
    spend(path, gaussian_of(2.9))
  assert ledger.statement(path)['adaptive_epsilon'] is None
  assert ledger.summary(path).endswith(
    f'begun by an earlier version: {ledger.NOT_VALID}'
  )


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
  assert ledger.entries(path) == []
  assert ledger.total(path) == 0
  spend(path, gaussian_of(2.0))
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


# The file.


def test_what_is_in_the_file(path):
  event = events.Composed((events.Gaussian(3.0, 2), events.Gaussian(0.1)))
  spend(
    path,
    event,
    budget_epsilon=1000,
    digest='abc',
    system='gaussian_mf',
    variant='sound',
    what='/runs/1',
    entry_id='one',
  )
  header, entry = lines(path)
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert header.pop('created')[:2] == '20'
  assert header == {
    'schema': ledger_file.SCHEMA,
    'dataset': 'made-up',
    'digest': 'abc',
    'unit': 'rating',
    'relation': 'replace',
    'budget_epsilon': 1000,
    'delta': 1e-6,
  }
  assert entry.pop('time')[:2] == '20'
  assert entry == {
    'id': 'one',
    'system': 'gaussian_mf',
    'variant': 'sound',
    'status': 'proved',
    'event': {
      'Composed': {
        'events': [
          {'Gaussian': {'noise_multiplier': 3.0, 'count': 2, 'uncovered': 0.0}},
          {'Gaussian': {'noise_multiplier': 0.1, 'count': 1, 'uncovered': 0.0}},
        ]
      }
    },
    'epsilon': accounting.epsilon(event, 1e-6),
    'delta': 1e-6,
    'unit': 'rating',
    'relation': 'replace',
    'digest': 'abc',
    'what': '/runs/1',
  }


def test_it_only_grows(path):
  before = b''
  for _ in range(4):
    spend(path, gaussian_of(0.1))
    assert path.read_bytes().startswith(before)
    before = path.read_bytes()
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


@pytest.mark.parametrize(
  ('facts', 'words'),
  [
    ({'unit': 'user'}, "counts with unit='rating', this run has 'user'"),
    ({'relation': 'add_remove'}, "relation='replace'"),
    ({'delta': 1e-5}, 'counts with delta=1e-06, this run has 1e-05'),
    ({'budget_epsilon': 4}, r'begun with budget_epsilon=3\.0, this run has 4'),
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


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (lambda s: s.replace('"Gaussian"', '"Unheard"'), 'line 2: event .Unheard.'),
    (lambda s: s.replace('ledger-2', 'ledger-9'), 'line 1: schema must be'),
    (lambda s: s.replace('proved', 'claimed'), 'line 2: status, unit, rel'),
    (lambda s: s.replace('"what"', '"where"'), 'line 2: what is missing'),
    (lambda s: s.replace('"count": 1', '"count": -1'), 'line 2: count must be'),
    (lambda s: s.replace('"count"', '"number"'), "line 2: event 'Gaussian'"),
    (lambda s: s + '\n', 'line 4: not JSON'),
    (lambda s: s + '[]\n', 'line 4: must be a JSON object'),
    (lambda s: s.split('\n', 1)[1], 'line 1: schema must be'),
    (lambda s: '\0' * 40 + s, 'line 1: not JSON'),
    (lambda s: s.replace('{"id"', '{id', 1), 'line 2: not JSON'),
  ],
)
def test_a_bad_line_is_named_and_nothing_is_spent(path, change, words):
  for _ in range(2):
    spend(path, gaussian_of(0.1))
  text = change(path.read_text())
  path.write_text(text)
  for attempt in (
    lambda: spend(path, gaussian_of(0.1)),
    lambda: ledger.total(path),
  ):
    with pytest.raises(ValueError, match=words) as error:
      attempt()
    assert str(path) in str(error.value)
    assert path.read_text() == text


# Crashes.


def test_wherever_the_last_line_is_cut_it_is_never_lost(path):
  for _ in range(2):
    spend(path, gaussian_of(0.1))
  whole = path.read_bytes()
  first = whole.index(b'\n') + 1
  second = whole.index(b'\n', first) + 1
  for length in [*range(second + 1, len(whole) - 1, 17), len(whole) - 2]:
    path.write_bytes(whole[:length])
    for attempt in (
      lambda: spend(path, gaussian_of(0.1)),
      lambda: ledger.entries(path),
    ):
      with pytest.raises(ValueError, match='line 3: the last line is cut off'):
        attempt()
    assert path.read_bytes() == whole[:length]
  # The line was whole and only its end is missing: it counts.
  path.write_bytes(whole[:-1])
  assert len(ledger.entries(path)) == 2
  spend(path, gaussian_of(0.1))
  assert len(ledger.entries(path)) == 3
  assert path.read_bytes().startswith(whole)
  # What the message says to do.
  path.write_bytes(whole[:second])
  spend(path, gaussian_of(0.1))
  assert len(ledger.entries(path)) == 2


def test_an_empty_file_is_a_ledger_that_was_not_begun(path):
  path.touch()
  with pytest.raises(ValueError, match='is empty'):
    ledger.entries(path)
  spend(path, gaussian_of(0.1), budget_epsilon=1)
  assert len(ledger.entries(path)) == 1


def test_a_full_disk_spends_nothing_and_breaks_nothing(path, monkeypatch):
  spend(path, gaussian_of(0.1))
  before = path.read_bytes()
  write = os.write
  with monkeypatch.context() as patched:
    patched.setattr(ledger_file.os, 'write', lambda fd, b: write(fd, b[:50]))
    with pytest.raises(OSError, match='no room for another line'):
      spend(path, gaussian_of(0.1))
  assert path.read_bytes() == before
  spend(path, gaussian_of(0.1))


def test_the_line_is_on_the_disk_before_it_returns(path, monkeypatch):
  spend(path, gaussian_of(0.1))
  synced = []
  fsync = os.fsync

  def watched(handle):
    fsync(handle)
    if stat.S_ISREG(os.fstat(handle).st_mode):
      synced.append(path.read_bytes())

  with monkeypatch.context() as patched:
    patched.setattr(ledger_file.os, 'fsync', watched)
    entry = spend(path, gaussian_of(0.1))
  assert entry.id.encode() in synced[-1]
  assert path.read_bytes() == synced[-1]

  def failing(handle):
    raise OSError(5, 'Input/output error')

  with monkeypatch.context() as patched:
    patched.setattr(ledger_file.os, 'fsync', failing)
    with pytest.raises(OSError, match='Input/output'):
      spend(path, gaussian_of(0.1))
  assert len(ledger.entries(path)) >= 2  # it may be counted, and is not given


def test_an_id_is_charged_once(path):
  first = spend(path, gaussian_of(2.0), budget_epsilon=3, entry_id='run')
  again = spend(path, gaussian_of(2.0), budget_epsilon=3, entry_id='run')
  assert again == first
  assert len(ledger.entries(path)) == 1
  with pytest.raises(ValueError, match='run is the id of Gaussian'):
    spend(path, gaussian_of(1.0), entry_id='run')
  with pytest.raises(ledger.BudgetExceeded):
    spend(path, gaussian_of(2.5), entry_id='another')


def test_a_ledger_replaced_while_waiting_is_read_anew(path):
  # An editor that writes a new file in place of the old one.
  spend(path, gaussian_of(0.1), budget_epsilon=3)
  with path.open('rb') as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    waiting = subprocess.Popen(
      [sys.executable, '-c', _SPEND_ONE, str(path)],
      cwd=ROOT,
      stdout=subprocess.PIPE,
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == b'locks\n'  # it has opened the file
    new = path.with_name('new')
    new.write_bytes(path.read_bytes())
    os.replace(new, path)
  assert waiting.wait() == 0
  waiting.stdout.close()
  assert len(ledger.entries(path)) == 2


# Says so when it is about to wait for a lock.
_SAY_LOCKS = """
import fcntl, runpy, sys
flock = fcntl.flock
def said(file, operation):
  if operation == fcntl.LOCK_EX:
    print('locks', flush=True)
  return flock(file, operation)
fcntl.flock = said
"""
_SPEND_ONE = f"""{_SAY_LOCKS}
from dpmf_jax.accounting import Gaussian, ledger
ledger.spend(sys.argv[1], Gaussian(100.0), delta=1e-6, unit='rating',
             relation='replace', dataset='made-up')
"""
_TRAIN = f"""{_SAY_LOCKS}
runpy.run_module('launch.train', run_name='__main__', alter_sys=True)
"""

# Real processes, all at the gate before the first may spend. They are forked
# from one that has no JAX, which is what takes time to import.
_MANY = """
import json, os, sys
from dpmf_jax.accounting import Gaussian, ledger, epsilon
path, processes, multiplier, budget = json.loads(sys.argv[1])
assert 'jax' not in sys.modules
epsilon(Gaussian(multiplier), 1e-6)  # imports what is imported late
gate, opened = os.pipe()
children = []
for number in range(processes):
  child = os.fork()
  if child == 0:
    code = 3
    try:
      os.close(opened)
      os.read(gate, 1)
      ledger.spend(
        path, Gaussian(multiplier), delta=1e-6, unit='rating',
        relation='replace', dataset='made-up', budget_epsilon=budget,
        what=str(number),
      )
      code = 0
    except ledger.BudgetExceeded:
      code = 1
    finally:
      os._exit(code)
  children.append(child)
os.close(opened)
codes = [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]
print(json.dumps(codes))
"""


def printed_by(code, *arguments):
  """The JSON that a process of its own prints."""
  done = subprocess.run(
    [sys.executable, '-c', code, *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def test_200_at_once_with_room_for_50(path):
  multiplier = calibrate_noise_multiplier(epsilon=2.999, delta=1e-6, count=50)
  assert accounting.epsilon(events.Gaussian(multiplier, 51), 1e-6) > 3
  codes = printed_by(_MANY, json.dumps([str(path), 200, multiplier, 3]))
  assert (codes.count(0), codes.count(1)) == (50, 150)
  written = ledger.entries(path)
  accepted = {str(number) for number, code in enumerate(codes) if code == 0}
  assert {entry.what for entry in written} == accepted
  assert len(written) == len({entry.id for entry in written}) == 50
  assert len(lines(path)) == 51
  assert ledger.total(path) <= 3


# Three writers at a time, killed anywhere, again and again. What a writer has
# been charged for, it says to the parent, as a run would draw noise.
_KILLED = """
import json, os, random, signal, sys, time, traceback
from dpmf_jax.accounting import Gaussian, ledger, epsilon
path, rounds = sys.argv[1], int(sys.argv[2])
random.seed(1)
epsilon(Gaussian(50.0), 1e-6)
charged, say = os.pipe()
charged, heard = os.fdopen(charged), []
for _ in range(rounds):
  children = []
  for _ in range(3):
    child = os.fork()
    if child == 0:
      try:
        while True:
          entry = ledger.spend(
            path, Gaussian(50.0), delta=1e-6, unit='rating',
            relation='replace', dataset='made-up', budget_epsilon='unlimited',
          )
          os.write(say, (entry.id + chr(10)).encode())
      except ValueError as error:
        if 'the last line is cut off' in str(error):
          os._exit(4)
        traceback.print_exc()
      except BaseException:
        traceback.print_exc()
      finally:
        os._exit(3)
    children.append(child)
  heard += [charged.readline() for _ in range(2)]  # they are at work
  for child in children:
    time.sleep(random.uniform(0, 0.03))  # anywhere: nothing depends on it
    os.kill(child, signal.SIGKILL)
  codes = [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]
  assert set(codes) <= {-signal.SIGKILL, 4}, codes
  if 4 in codes:
    # A kill inside a write, as rare as it is, stops all the other writers:
    # what the message says to do.
    with open(path, 'rb') as file:
      content = file.read()
    assert not content.endswith(b'\\n'), content[-100:]
    os.truncate(path, content.rfind(b'\\n') + 1)
os.close(say)
print(json.dumps(''.join([*heard, charged.read()]).split()))
"""


def test_killed_writers_never_under_count(path):
  rounds = 25
  charged = printed_by(_KILLED, str(path), str(rounds))
  written = [entry.id for entry in ledger.entries(path)]
  assert len(charged) > rounds
  assert set(charged) <= set(written)
  assert len(charged) <= len(written) <= len(charged) + 3 * rounds


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
  line = 'ledger: 1 release, epsilon 2 of 3 spent at delta 1e-06; '
  assert line in done.stdout
  assert 'what holds is the budget, epsilon 3 at delta 1e-06\n' in done.stdout
  (entry,) = ledger.entries(path)
  document = files.read_json(first / 'certificate.json')
  assert entry.epsilon == document['epsilon']
  assert entry.event == encoding.decode(document['event'])
  assert (entry.system, entry.variant) == ('gaussian_mf', 'sound')
  assert (entry.unit, entry.relation) == ('rating', 'add_remove')
  assert entry.what == str(first)
  assert 'ledger' not in json.dumps(document)

  before = path.read_bytes()
  for output, more in ((second, ()), (first, ('--overwrite',))):
    done = train(launch, ratings_file, path, output, '--epsilon=2.5', *more)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for words in (
      'refused: ', '1 release of epsilon 2,', 'this run is 2.5,',
      'together they are 3.3', 'budget of 3 (all at delta 1e-06)',
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
    (['--epsilon=1', '--budget_epsilon=4'], 'begun with --budget_epsilon=3.0'),
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

  # The ledger is locked: the run has to wait, and has not begun.
  with path.open('wb') as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    process = subprocess.Popen(
      [sys.executable, '-c', _TRAIN, *files_of_run, *more],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert b'locks\n' in iter(process.stdout.readline, b'')
    leaves, metadata = files.load_leaves(checkpoint)
    assert leaves['step'] == 0
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
  assert path.read_bytes() == b''

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
  assert 'budget, epsilon 3.0000049 at delta 1e-06' in ledger.summary(path)


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
