"""Tests of the script that fetches data, and of the shared exit codes."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest


@pytest.fixture
def places(tmp_path):
  env = os.environ | {'DPMF_CACHE': str(tmp_path / 'cache')}
  env.pop('DPMF_DATA_DIR', None)
  return env


def test_it_says_where_and_what(launch, places, data_dir):
  done = launch(
    'fetch_data', '--dataset=ml-100k', f'--data_dir={data_dir}', env=places
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines() == [
    f'ml-100k: {data_dir / "ml-100k"}',
    '943 users, 1682 items, 100000 ratings, scale 1 to 5',
  ]
  assert 'Harper and Konstan' in done.stderr


def test_synthetic_needs_no_file(launch, places):
  done = launch('fetch_data', '--dataset=synthetic-small', env=places)
  assert done.returncode == 0, done.stderr
  assert '200 users, 100 items, 4000 ratings, scale 1 to 5' in done.stdout


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ([], 'error: --dataset must be given (see --help)'),
    (['--dataset=ml-2'], 'value should be one of <ml-100k|ml-1m'),
    (['--dataset=ml-1m', '--colour=red'], "Unknown command line flag 'colour'"),
    (['--dataset=ml-1m', 'more'], "unexpected argument 'more'"),
    (['--dataset=ml-1m', '--data_dir=/no/such'], 'data_dir=/no/such is not a'),
    (['--dataset=anime-slice'], 'DIR/anime/anime_ratings.dat'),
  ],
)
def test_wrong_flags_are_one_line_and_exit_code_2(
  launch, places, flags, message
):
  done = launch('fetch_data', *flags, env=places)
  assert done.returncode == 2
  assert done.stdout == ''
  assert len(done.stderr.splitlines()) == 1
  assert done.stderr.startswith('error: ')
  assert message in done.stderr


def test_help_has_an_example_and_exit_code_0(launch, places):
  done = launch('fetch_data', '--help', env=places)
  assert done.returncode == 0
  assert 'dpmf fetch_data --dataset=ml-100k' in done.stdout
  assert '--cache_dir' in done.stdout
  assert done.stderr == ''


SCRIPT = """
  import sys, time
  from dpmf_jax.commands import cli

  def main(argv):
    {body}

  cli.run(main)
"""


def script(body, **options):
  text = textwrap.dedent(SCRIPT).format(body=body)
  return subprocess.Popen(
    [sys.executable, '-c', text],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    **options,
  )


@pytest.mark.parametrize(
  ('body', 'code', 'error'),
  [
    ('return 1', 1, ''),
    ('return None', 0, ''),
    ('raise ValueError("two\\nlines")', 2, 'error: two lines\n'),
    ('open("/no/such")', 2, 'error: /no/such: No such file or directory\n'),
    ('raise KeyboardInterrupt', 130, 'interrupted\n'),
  ],
)
def test_exit_codes(body, code, error):
  process = script(body.replace('\n', '\\n'))
  _, stderr = process.communicate()
  assert (process.returncode, stderr) == (code, error)


def test_a_bug_keeps_its_traceback():
  process = script('return {}["key"]')
  _, stderr = process.communicate()
  assert process.returncode == 1
  assert "KeyError: 'key'" in stderr


def test_the_traceback_can_be_asked_for():
  env = os.environ | {'DPMF_TRACEBACK': '1'}
  process = script('raise ValueError("why")', env=env)
  _, stderr = process.communicate()
  assert process.returncode == 2
  assert 'Traceback' in stderr
  assert stderr.endswith('error: why\n')


def test_ctrl_c_is_130():
  # A shell that runs the tests in the background has them ignore Ctrl-C.
  heed = 'import signal; signal.signal(2, signal.default_int_handler); '
  process = script(heed + 'print("ready", flush=True); signal.pause()')
  assert process.stdout is not None
  assert process.stdout.readline() == 'ready\n'
  process.send_signal(signal.SIGINT)
  _, stderr = process.communicate()
  assert (process.returncode, stderr) == (130, 'interrupted\n')


def test_a_closed_pipe_is_quiet():
  process = script('[print("x" * 1000) for _ in range(1000)]')
  assert process.stdout is not None
  process.stdout.read(10)
  process.stdout.close()
  assert process.stderr is not None
  assert process.stderr.read() == ''
  assert process.wait() == 0
