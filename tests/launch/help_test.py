"""`--help`: groups, and the settings of the system that is named."""

import re

import pytest

from dpmf_jax import plans
from dpmf_jax.commands import settings
from dpmf_jax.plans.settings import settings_of


def shown(launch, command, *flags):
  """{title of a group: names of the flags in it}."""
  done = launch(command, *flags)
  assert (done.returncode, done.stderr) == (0, '')
  assert '--flagfile=FILE' in done.stdout
  assert max(map(len, done.stdout.splitlines())) <= 80
  found, title = {}, None
  for line in done.stdout.splitlines():
    if re.fullmatch(r'[a-z][\w ]*:', line):
      title = line[:-1]
      found[title] = []
    elif flag := re.match(r'  --(?:\[no\])?(\w+): ', line):
      found[title].append(flag[1])
  return {title: names for title, names in found.items() if names}


@pytest.mark.parametrize('system', plans.SPECS)
def test_the_settings_are_those_of_the_system(launch, system):
  groups = shown(
    launch, 'train', '--help', f'--system={system}', '--variant=paper'
  )
  assert [*groups][:3] == ['data', 'privacy', 'system']
  listed = {name for names in groups.values() for name in names}
  own = {each.name for each in settings_of(plans.SPECS[system].config)}
  assert listed & settings.texts().keys() == own & settings.texts().keys()
  assert set(groups.get(f'settings of {system}', ())) <= own
  assert ('threshold' in listed) == plans.SPECS[system].personalized
  assert len(listed) == sum(map(len, groups.values()))


def test_a_sound_system_of_another_name(launch):
  groups = shown(launch, 'train', '--system=sdmf', '--help')
  assert 'levels' in groups['settings of local_mf']


def test_auto_has_no_settings_but_those_of_privacy(launch):
  groups = shown(launch, 'train', '--system=auto', '--help')
  assert [*groups] == ['data', 'privacy', 'system', 'output', 'the rest']
  assert groups['privacy'][:3] == ['epsilon', 'delta', 'unit']


def test_helpfull_has_all_flags(launch):
  groups = shown(launch, 'train', '--helpfull')
  listed = {name for names in groups.values() for name in names}
  assert settings.texts().keys() <= listed
  assert {'threshold', 'attributes', 'verbosity'} <= listed


@pytest.mark.parametrize(
  ('system', 'read', 'unread'),
  [
    ('power_mf', 'mean_share', 'sampling_rate'),
    ('gaussian_mf', 'sigma', 'mean_share'),
    ('subsampled_gaussian', 'sampling_rate', 'mean_share'),
  ],
)
def test_account(launch, system, read, unread):
  groups = shown(launch, 'account', f'--system={system}', '--help')
  listed = {name for names in groups.values() for name in names}
  assert read in listed
  assert unread not in listed


def test_flags_of_a_file_count(launch, tmp_path):
  path = tmp_path / 'flags'
  path.write_text('--system=dpals\n')
  assert 'settings of dpals' in shown(
    launch, 'train', f'--flagfile={path}', '--help'
  )


def test_a_wrong_flag_beside_help_is_an_error(launch):
  done = launch('train', '--help', '--system=powr_mf')
  assert done.returncode == 2
  assert done.stderr.startswith('error: flag --system=powr_mf')
