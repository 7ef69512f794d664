"""`python -m launch.account`, run as a user runs it."""

import json
import subprocess
import sys

import pytest

from dpmf_jax import accounting

PAPER = (
  '--variant=paper --steps=1250 --epsilon_per_step=0.3 --delta_per_step=0.01'
  ' --delta=1e-5'
)
SOUND = '--steps=100 --delta=1e-6 --residual_bound=4'


def run(arguments, system='gaussian_mf'):
  command = [sys.executable, '-m', 'launch.account', f'--system={system}']
  return subprocess.run(
    command + arguments.split(), capture_output=True, text=True, check=False
  )


def answer(arguments):
  done = run(arguments)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def test_paper():
  result = answer(PAPER)
  assert result['status'] == 'claimed'
  assert result['unit'] == 'rating'
  assert result['relation'] == 'replace'
  assert result['epsilon'] == pytest.approx(22.2, abs=0.1)
  assert result['order'] == pytest.approx(2.4059, abs=1e-4)
  assert result['sensitivity'] == 4.0
  assert result['sigma'] == pytest.approx(4 * result['noise_multiplier'])
  same = result['same_noise_if_only_the_noised_gradient_leaked']
  assert same['exact'] < 0.9 * result['epsilon']
  assert same['exact'] < same['rdp_optimal'] < same['rdp_mironov']
  assert same['rdp_mironov'] == pytest.approx(result['epsilon'], rel=1e-9)


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
  assert there['sigma'] == pytest.approx(there['sigma_item'])
  # Both gradients: sqrt(2) times the noise that one would need.
  alone = accounting.calibrate_noise_multiplier(
    epsilon=1.0, delta=1e-6, count=100
  )
  assert there['sensitivity'] == pytest.approx(4 + 4 / 256 + 2 * 4 / 1024)
  want = there['sensitivity'] * 2**0.5 * alone
  assert there['sigma'] == pytest.approx(want, rel=1e-9)
  back = answer(f'{SOUND} --relation=replace --sigma={there["sigma"]!r}')
  assert back['epsilon'] == pytest.approx(1, rel=1e-9)


def test_sound_add_remove_with_an_uneven_share():
  result = answer(
    '--steps=100 --relation=add_remove --residual_bound=2 --clip_norm=0.5'
    ' --sigma=30 --user_share=0.2'
  )
  assert result['relation'] == 'add_remove'
  delta_2 = 1.0 + 2 / 1024  # rank 4: sqrt(4) units of 1/1024
  assert result['sensitivity'] == pytest.approx(delta_2)
  assert result['sigma'] == pytest.approx(30)
  assert result['sigma_item'] == pytest.approx(15)
  mu_squared = 100 * delta_2**2 * (1 / 900 + 1 / 225)
  assert result['mu'] ** 2 == pytest.approx(mu_squared)
  exact = accounting.gaussian.epsilon_of(result['mu'], 1e-6)
  assert result['epsilon'] == pytest.approx(exact, rel=1e-9)


def test_what_is_not_given_is_as_in_training():
  from dpmf_jax.systems import SYSTEMS
  from dpmf_jax.systems.gaussian_mf_config import noise_stds

  entry = SYSTEMS['gaussian_mf']
  common = {'scale': (1.0, 5.0), 'delta': 1e-6, 'epsilon': 2.0, 'steps': 7}
  for variant in ('sound', 'paper'):
    config = entry.config(**{**entry.variants[variant], **common})
    result = answer(f'--variant={variant} --epsilon=2 --steps=7')
    assert result['relation'] == config.relation
    assert result['sigma'] == pytest.approx(noise_stds(config)[0], rel=1e-9)


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    ('--steps=9 --epsilon=1 --residual_bound=inf', 'finite residual_bound'),
    (f'{SOUND} --relation=replace', 'one of --epsilon and --sigma'),
    (f'{SOUND} --relation=replace --epsilon=1 --sigma=1', 'got both'),
    (f'{SOUND} --relation=replace --sigma=0', '--sigma must be > 0, got 0.0'),
    (f'{SOUND} --relation=replace --sigma=1 --user_share=-1', 'user_share'),
    (
      f'{SOUND} --relation=replace --epsilon=1 --scale=5,1',
      '--scale=5,1 must be the lowest and the highest',
    ),
    ('--steps=9 --epsilon_per_step=0.1', 'is not for --variant=sound'),
    (f'{PAPER} --sigma=3', '--sigma is not for --variant=paper'),
    (f'{PAPER} --epsilon_per_step=1.5', 'epsilon_per_step must be in (0, 1)'),
    (f'{PAPER} --relation=add_remove', '--relation must be replace'),
    (f'{PAPER} --steps=0', '--steps must be >= 1, got 0'),
    (f'{PAPER} --bogus=1', 'bogus'),
  ],
)
def test_errors_are_one_line_and_exit_2(arguments, words):
  done = run(arguments)
  assert done.returncode == 2
  assert done.stdout == ''
  assert done.stderr.startswith('error: ')
  assert len(done.stderr.splitlines()) == 1
  assert words in done.stderr


def test_unknown_system():
  done = run(PAPER, system='nothing')
  assert done.returncode == 2
  assert len(done.stderr.splitlines()) == 1
  assert 'gaussian_mf' in done.stderr


def test_help_has_examples():
  done = run('--help')
  assert done.returncode == 0
  assert 'python -m launch.account --system=gaussian_mf' in done.stdout
  assert '--residual_bound' in done.stdout
