"""`python -m launch.account`, run as a user runs it."""

import csv
import json

import forks
import matplotlib.image
import pytest
from certified import make

from dpmf_jax import accounting
from dpmf_jax.accounting import ledger, ledger_costs
from dpmf_jax.plans import SPECS, config_of

PAPER = (
  '--variant=paper --steps=1250 --epsilon_per_step=0.3 --delta_per_step=0.01'
  ' --delta=1e-5'
)
SOUND = '--steps=100 --delta=1e-6 --residual_bound=4'


def run(arguments, system='gaussian_mf', *, alone=False):
  flags = arguments.split()
  if system is not None:
    flags.append(f'--system={system}')
  started = forks.run_alone if alone else forks.run
  return started('launch.account', *flags)


def answer(arguments, system='gaussian_mf', **options):
  done = run(arguments, system, **options)
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()) == 1
  return json.loads(done.stdout)


def refused(arguments, words, system='gaussian_mf'):
  done = run(arguments, system)
  assert done.returncode == 2
  assert done.stdout == ''
  assert done.stderr.startswith('error: ')
  assert len(done.stderr.splitlines()) == 1
  assert words in done.stderr


def test_paper():
  result = answer(PAPER, alone=True)
  assert result['status'] == 'claimed'
  assert result['unit'] == 'rating'
  assert result['relation'] == 'replace'
  assert result['epsilon'] == pytest.approx(22.2, abs=0.1)
  assert result['order'] == pytest.approx(2.4059, abs=1e-4)
  assert result['sensitivity']['user gradient'] == 4.0
  assert result['sigma'] == pytest.approx(4 * result['noise_multiplier'])
  same = result['same_noise_if_only_the_noised_gradient_leaked']
  assert same['exact'] < 0.9 * result['epsilon']
  assert same['exact'] < same['renyi_canonne'] < same['renyi_mironov']
  assert same['renyi_mironov'] == pytest.approx(result['epsilon'], rel=1e-9)


def test_paper_from_the_overall_epsilon():
  result = answer(
    '--variant=paper --steps=1250 --epsilon=10 --delta_per_step=0.01'
    ' --delta=1e-5'
  )
  assert result['epsilon'] == pytest.approx(10, rel=1e-9)
  assert 0 < result['epsilon_per_step'] < 0.3


def test_sound_noise_for_epsilon_and_back():
  there = answer(f'{SOUND} --relation=replace --epsilon=1')
  assert there['status'] == 'proved'
  assert there['variant'] == 'sound'
  assert there['epsilon'] <= 1
  assert there['epsilon'] == pytest.approx(1, rel=1e-9)
  assert there['sigma'] == pytest.approx(there['noise']['item gradient'])
  # Both gradients: sqrt(2) times the noise that one would need.
  alone = accounting.calibrate_noise_multiplier(
    epsilon=1.0, delta=1e-6, count=100
  )
  moved = there['sensitivity']['user gradient']
  assert moved == pytest.approx(4 + 4 / 256 + 2 * 4 / 1024)
  # And a millionth more than that, for float32; the ends of its tails, which
  # delta pays for too, ask for less.
  want = moved * 2**0.5 * alone
  assert want * (1 + 1e-6) <= there['sigma'] <= want * (1 + 1.001e-6)
  assert 0 < there['uncovered'] < 1e-14
  back = answer(f'{SOUND} --relation=replace --sigma={there["sigma"]!r}')
  assert back['epsilon'] == pytest.approx(1, rel=1e-9)


def test_sound_add_remove_with_an_uneven_share():
  result = answer(
    '--steps=100 --relation=add_remove --residual_bound=2 --clip_norm=0.5'
    ' --sigma=30 --user_share=0.2'
  )
  assert result['relation'] == 'add_remove'
  delta_2 = 1.0 + 2 / 1024  # rank 4: sqrt(4) units of 1/1024
  assert result['sensitivity']['item gradient'] == pytest.approx(delta_2)
  assert result['sigma'] == pytest.approx(30)
  assert result['noise']['item gradient'] == pytest.approx(15)
  # A millionth of the noise is for float32.
  mu_squared = 100 * (1.000001 * delta_2) ** 2 * (1 / 900 + 1 / 225)
  assert result['mu'] ** 2 == pytest.approx(mu_squared, rel=1e-9)
  left = 1e-6 - result['uncovered']
  exact = accounting.gaussian.epsilon_of(result['mu'], left)
  assert result['epsilon'] == pytest.approx(exact, rel=1e-9)


def test_what_is_not_given_is_as_in_training():
  common = {'scale': (1.0, 5.0), 'delta': 1e-6, 'epsilon': 2.0, 'steps': 7}
  for variant in ('sound', 'paper'):
    config = config_of('gaussian_mf', variant, **common)
    result = answer(f'--variant={variant} --epsilon=2 --steps=7')
    assert result['relation'] == config.relation
    assert result['noise'] == SPECS['gaussian_mf'].plan(config).noise


ERRORS = [
  ('--steps=9 --epsilon=1 --residual_bound=inf', 'residual_bound=inf must'),
  (f'{SOUND} --relation=replace', 'for example --epsilon=1'),
  (
    f'{SOUND} --relation=replace --epsilon=1 --sigma=1',
    'got --epsilon and --sigma',
  ),
  (f'{SOUND} --relation=replace --sigma=0', '--sigma must be > 0, got 0.0'),
  (f'{SOUND} --relation=replace --sigma=1 --user_share=-1', 'user_share'),
  (
    f'{SOUND} --relation=replace --epsilon=1 --scale=5,1',
    '--scale=5,1 must be the lowest and the highest',
  ),
  ('--steps=9 --epsilon_per_step=0.1', 'takes exactly one of epsilon and'),
  (f'{PAPER} --sigma=3', '--sigma is for --system=gaussian_mf'),
  (f'{PAPER} --epsilon_per_step=1.5', 'epsilon_per_step must be in (0, 1)'),
  (f'{PAPER} --relation=add_remove', 'the paper claims nothing for'),
  (f'{PAPER} --steps=0', '--steps must be >= 1, got 0'),
  (f'{PAPER} --bogus=1', 'bogus'),
  (f'{PAPER} --steps=1.5', '--steps=1.5 must be whole numbers'),
  (f'{PAPER} --steps=1,2', 'needs --table=steps'),
  (f'{PAPER} --steps=', '--steps= must be whole numbers'),
  ('--steps=9 --epsilon=1,two', '--epsilon=1,two must be numbers'),
  ('--steps=9 --epsilon=1,2', 'needs --table=epsilon'),
  ('--steps=9,10 --epsilon=1,2 --table=steps', 'needs --table=epsilon'),
  ('--steps=9 --sigma=9 --table=epsilon', '--epsilon must be given'),
  ('--epsilon=1 --rounds=3', '--rounds=3 is not a setting of'),
  (f'{PAPER} --csv=x.csv', '--csv is not for a single answer'),
  (f'{PAPER} --html=x.html', 'it needs --certificate'),
  ('--steps=9 --epsilon=1 --table=epsilon --plot=x.png', 'it is over steps'),
  (f'{PAPER} --categories=3', '--categories is not for --system=gaussian_mf'),
  (f'{PAPER} --plot=/no/such/folder/x.png', 'no such directory'),
  # What no run would be trained with.
  ('--steps=60 --epsilon=1 --delta=1e-30', 'delta=1e-30 is too small'),
  (
    '--steps=60 --epsilon=1 --delta=0.9',
    '--delta must be in (0, 1/4], got 0.9',
  ),
  ('--steps=60 --epsilon=200', 'the noise too little, for float32'),
  ('--steps=60 --epsilon=1 --lattice_bits=30', 'lattice_bits=30 must be'),
  (f'{PAPER} --delta=0.9', '--delta must be in (0, 1/4], got 0.9'),
]
PLAIN_ERRORS = [
  ('gaussian', '--steps=9', 'exactly one of --epsilon and'),
  ('gaussian', '--steps=9 --noise_multiplier=0', 'zero noise'),
  ('gaussian', '--steps=9 --sigma=3', '--sigma is not for'),
  ('gaussian', '--steps=9 --noise_multiplier=1 --delta=0', 'delta'),
  ('gaussian', '--steps=9 --noise_multiplier=1 --delta=0.9', '(0, 1/4]'),
  ('laplace', '--steps=9 --epsilon=0', '--epsilon must be > 0'),
  ('laplace', '--steps=9 --epsilon=nan', '--epsilon must be > 0'),
  ('laplace', '--steps=9 --epsilon_per_release=-1', 'must be > 0'),
  ('randomized_response', '--steps=9 --noise_multiplier=1', 'is not for'),
  (
    'randomized_response',
    '--steps=9 --epsilon_per_release=1 --categories=1',
    'categories must be >= 2',
  ),
  (
    'randomized_response',
    '--steps=9 --epsilon_per_release=1 --relation=add_remove',
    '--relation must be replace',
  ),
  ('subsampled_gaussian', '--steps=9 --epsilon=1', '--sampling_rate must be'),
  (
    'subsampled_gaussian',
    '--steps=9 --epsilon=1 --sampling_rate=0.1 --relation=replace',
    '--relation must be add_remove for --sampling=poisson',
  ),
]
ERRORS = [('gaussian_mf', *case) for case in ERRORS] + PLAIN_ERRORS


@pytest.mark.parametrize(('system', 'arguments', 'words'), ERRORS)
def test_errors_are_one_line_and_exit_2(system, arguments, words):
  refused(arguments, words, system)


@pytest.mark.parametrize(
  'name',
  [name for name, spec in SPECS.items() if 'sound' in spec.variants],
)
def test_every_proved_system(name):
  found = answer('--epsilon=1', name)
  assert found['status'] == 'proved'
  assert 0.9 < found['epsilon'] <= 1
  for field in ('delta', 'sigma', 'unit', 'relation', 'steps', 'mechanism'):
    assert found[field], field


def test_sound_sdcf_is_local_and_baselines_are_not_private():
  assert answer('--epsilon=1', 'sdmf')['system'] == 'local_mf'
  assert answer('--epsilon=1', 'sdbpr')['system'] == 'local_ranking'
  refused('', 'is not private', 'als')


def test_unknown_system():
  done = run(PAPER, system='nothing', alone=True)
  assert done.returncode == 2
  assert len(done.stderr.splitlines()) == 1
  assert 'gaussian_mf' in done.stderr


def test_help_has_examples():
  done = run('--help', alone=True)
  assert done.returncode == 0
  assert 'dpmf account --system=gaussian_mf' in done.stdout
  assert '--residual_bound' in done.stdout


# Plain mechanisms


def test_ten_randomized_responses():
  result = answer(
    '--epsilon_per_release=1 --steps=10 --delta=1e-6',
    'randomized_response',
    alone=True,
  )
  assert result['epsilon'] == pytest.approx(10.0, abs=1e-4)
  assert result['status'] == 'proved'
  assert result['relation'] == 'replace'
  pure = answer(
    '--epsilon_per_release=1 --steps=10 --delta=0', 'randomized_response'
  )
  assert pure['epsilon'] == pytest.approx(10.0, rel=1e-12)


@pytest.mark.parametrize(
  ('system', 'arguments', 'parameter'),
  [
    ('gaussian', '--steps=50', 'noise_multiplier'),
    ('laplace', '--steps=50', 'noise_multiplier'),
    ('randomized_response', '--steps=50', 'epsilon_per_release'),
    (
      'subsampled_gaussian',
      '--steps=50 --sampling_rate=0.1 --sampling=without_replacement',
      'noise_multiplier',
    ),
  ],
)
def test_noise_for_epsilon_and_back(system, arguments, parameter):
  there = answer(f'{arguments} --epsilon=2', system)
  assert there['epsilon'] <= 2
  assert there['epsilon'] == pytest.approx(2, rel=1e-4)
  assert there['epsilon'] == min(there['bounds'].values())
  back = answer(f'{arguments} --{parameter}={there[parameter]!r}', system)
  assert back == there


def test_laplace_by_the_epsilon_of_a_release():
  event = accounting.Laplace(4.0)
  result = answer('--steps=1 --epsilon_per_release=0.25', 'laplace')
  assert result['epsilon'] == accounting.epsilon(event, 1e-6)
  assert result == answer('--steps=1 --noise_multiplier=4', 'laplace')


# Tables and pictures


def test_table_over_steps_of_a_claim(tmp_path):
  path = tmp_path / 'table.csv'
  arguments = PAPER.replace('1250', '10,1250')
  done = run(f'{arguments} --table=steps --csv={path}')
  assert done.returncode == 0, done.stderr
  head, names, *rows, note = done.stdout.splitlines()
  assert 'status claimed' in head
  assert names.split()[:3] == ['steps', 'epsilon', '(claimed)']
  assert [row.split()[:2] for row in rows] == [
    ['10', '1.51153'],
    ['1250', '22.2034'],
  ]
  assert len({len(line) for line in (names, *rows)}) == 1  # aligned
  assert 'not a guarantee' in note
  with path.open() as file:
    table = list(csv.DictReader(file))
  single = answer(PAPER)
  assert table[1]['status'] == 'claimed'
  assert float(table[1]['epsilon']) == single['epsilon']
  same = single['same_noise_if_only_the_noised_gradient_leaked']
  assert float(table[1]['same_noise_exact']) == same['exact']


def test_table_over_epsilons():
  done = run('--table=epsilon --epsilon=0.5,1,2 --steps=60')
  head, names, *rows = done.stdout.splitlines()
  assert 'status proved' in head
  assert 'steps 60' in head
  assert names.split()[:2] == ['epsilon', '(proved)']
  assert [float(row.split()[0]) for row in rows] == [0.5, 1, 2]
  noise = [float(row.split()[1]) for row in rows]
  assert noise == sorted(noise, reverse=True)
  single = answer('--epsilon=1 --steps=60')
  assert noise[1] == pytest.approx(single['sigma'], rel=1e-5)


@pytest.mark.parametrize(
  ('system', 'arguments'),
  [
    ('gaussian_mf', PAPER),
    ('gaussian', '--steps=1 --noise_multiplier=3'),
    ('randomized_response', '--steps=40 --epsilon_per_release=0.1'),
    ('laplace', '--steps=3 --noise_multiplier=9 --delta=0'),
    ('gaussian_mf', f'{PAPER} --plot_by=delta'),
    ('power_mf', '--epsilon=1'),
    ('power_mf', '--epsilon=1 --plot_by=delta'),
    ('sdmf', '--variant=paper --epsilon_instant=1 --plot_by=delta'),
  ],
)
def test_plot(tmp_path, system, arguments):
  path = tmp_path / 'plot.png'
  assert answer(f'{arguments} --plot={path}', system) == answer(
    arguments, system
  )
  assert matplotlib.image.imread(path).shape[:2] == (552, 840)


# Certificates


def written(folder, **settings):
  document = make(**settings)[1]
  (folder / 'certificate.json').write_text(json.dumps(document))
  return document


def test_certificate_in_all_formats(tmp_path):
  written(tmp_path, variant='paper')
  html, marks = tmp_path / 'page.html', tmp_path / 'page.md'
  done = run(
    f'--certificate={tmp_path} --html={html} --markdown={marks}',
    system=None,
    alone=True,
  )
  assert done.returncode == 0, done.stderr
  for content in (done.stdout, html.read_text(), marks.read_text()):
    assert 'CLAIMED BY THE PAPER, NOT A GUARANTEE' in content
  assert f'written to {html}' in done.stdout
  assert html.read_text().startswith('<!DOCTYPE html>')
  assert marks.read_text().startswith('# Privacy certificate')
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    'certificate.json', 'page.html', 'page.md'
  ]  # fmt: skip


def test_wrong_certificates(tmp_path):
  flag, html = f'--certificate={tmp_path}', tmp_path / 'page.html'
  path = tmp_path / 'certificate.json'
  refused(flag, f'{path}: No such file', system=None)
  path.write_text('{"schema":')
  refused(flag, f'{path}, line 1', system=None)
  document = written(tmp_path)
  path.write_text(json.dumps(document | {'epsilon': 'low'}))
  refused(f'{flag} --html={html}', "field epsilon: 'low'", system=None)
  path.write_text(json.dumps(document | {'epsilon': float('nan')}))
  refused(flag, 'field epsilon: nan is not finite', system=None)
  assert not html.exists()
  path.write_text(json.dumps(document))
  refused(f'{flag} --html={tmp_path}', 'is a directory', system=None)
  refused(f'{flag} --steps=3', '--steps is not for --certificate', system=None)
  refused(f'{flag} --delta=1e-9', '--delta is not for', system=None)
  refused(flag, '--system is not for --certificate')


# Ledgers


def book(path, budget=3.0):
  for what in ('/runs/1', '<b>bold</b>'):
    ledger.spend(
      path, accounting.Gaussian(9.0), delta=1e-6, unit='rating',
      relation='replace', dataset='mine', budget_epsilon=budget,
      system='power_mf', variant='sound', what=what,
    )  # fmt: skip
  return path


@pytest.mark.filterwarnings('ignore:.*has no budget')
@pytest.mark.parametrize('budget', [3.0, 'unlimited'])
def test_a_ledger_says_what_holds(tmp_path, budget):
  path = book(tmp_path / 'mine.db', budget)
  found = answer(f'--ledger={path} --format=json', system=None)
  assert found == ledger.report(path)
  assert found['releases'] == 2
  assert found['epsilon'] == ledger.total(path)
  not_valid = 'not valid if later runs were chosen after seeing earlier ones'
  assert found['caveat'] == not_valid
  assert found['budget_epsilon'] == budget
  begun, first, second = found['rows']
  assert begun['budget_epsilon'] == budget
  assert first['epsilon'] == ledger.entries(path)[0].epsilon
  assert (second['number'], second['hash']) == (3, found['head'])
  if budget == 'unlimited':
    assert found['adaptive_epsilon'] is None
    assert found['left_epsilon'] is None
    assert found['holds'] == f'no budget: {not_valid}'
  else:
    assert found['adaptive_epsilon'] == 3
    assert 2.8 < found['left_epsilon'] < 3
    assert 'what holds is the budget, epsilon 3' in found['holds']


def test_a_ledger_as_text_and_as_a_page(tmp_path):
  path = book(tmp_path / 'mine.db')
  flag = f'--ledger={path}'
  stated = ledger.statement(path)
  head = stated['head']
  text = run(f'{flag} --head={head}', system=None).stdout
  for words in (
    f'ledger     {path}\n',
    'data set   mine, unit rating, relation replace\n',
    'budget     epsilon 3 at delta 1e-6\n',
    'releases   2\n',
    f'spent      epsilon {ledger_costs.shown(stated["counted_epsilon"])}\n',
    f'left       {ledger_costs.what_fits(stated["left_epsilon"])}\n',
    'holds      if later runs are chosen after seeing earlier ones, what holds',
    f'last hash  {head}\n',
    '  power_mf  sound    0.4442   /runs/1\n',
  ):
    assert words in text
  page = run(f'{flag} --format=html', system=None).stdout
  assert page.startswith('<!DOCTYPE html>')
  assert '<td>&lt;b&gt;bold&lt;/b&gt;</td>' in page
  assert '<b>' not in page
  assert f'<td>{head}</td>' in page
  refused(f'{flag} --head=abc', 'no row with the hash abc', system=None)


def test_a_budget_is_changed_with_a_reason(tmp_path):
  path = book(tmp_path / 'mine.db')
  flag = f'--ledger={path} --set_budget=5'
  refused(flag, '--reason must be given', system=None)
  done = run(f'{flag} --reason=second_study', system=None)
  assert done.returncode == 0, done.stderr
  assert 'budget     epsilon 5 at delta 1e-6\n' in done.stdout
  assert 'the budget was raised after 2 releases: epsilon 3 ' in done.stdout
  assert ' epsilon 5: second_study\n' in done.stdout
  refused(f'{flag} --reason=again', 'has budget_epsilon=5.0 already', None)
  refused(f'{flag}x --reason=a', "5x must be a number or 'unlimited'", None)
  lone = f'--ledger={path} --reason=why'
  refused(lone, '--reason is not for --ledger; it needs --set_budget', None)
  assert len(ledger.report(path)['rows']) == 4


def test_a_ledger_is_imported(tmp_path):
  old, path = tmp_path / 'old.ledger', tmp_path / 'mine.db'
  old.write_text('{"schema": "dpmf_jax-ledger-2"}\n')
  refused(
    f'--ledger={old}', f'--import_ledger={old} --ledger=NEW.db', system=None
  )
  both = f'--import_ledger={old} --ledger={path}'
  refused(both, f'{old}, line 1: dataset is missing', system=None)
  refused(f'--import_ledger={old}', '--import_ledger is not for an account')
  refused('--format=json', '--format is not for an account; it needs --ledger')
  assert not path.exists()


def test_wrong_ledgers(tmp_path):
  path = tmp_path / 'mine.db'
  refused(f'--ledger={path}', f'{path}: No such file', system=None)
  path.touch()
  refused(f'--ledger={path}', 'is empty: not a ledger yet', system=None)
  refused(f'--ledger={path}', '--system is not for --ledger')
  both = f'--ledger={path} --certificate={tmp_path}'
  refused(both, '--ledger is not for --certificate', system=None)
