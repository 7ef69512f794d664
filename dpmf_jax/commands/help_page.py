"""`--help`: a command's docstring and its flags, in groups.

Of the settings of systems only those of the one that --system names are shown,
as its config declares them; --helpfull has them all.
"""

from __future__ import annotations

import inspect
from types import ModuleType

from absl import flags

from dpmf_jax import plans
from dpmf_jax.commands import settings
from dpmf_jax.plans import selection

_FILE = (
  '--flagfile=FILE reads flags from a file, one on each line. In a checkout '
  '`python -m launch.NAME` is `dpmf NAME`.'
)
_SYSTEMS = (
  '--system=NAME --help has the settings of that system, --helpfull those of '
  'all. '
)
_Groups = dict[str, list[str]]


def page(command: ModuleType, *, full: bool = False) -> str:
  """The help of a command, for the flags as they were parsed.

  Args:
    command: its module. GROUPS, if it has that, says which flags belong
      together, {title: names}; settings that it does not name go to its group
      'system'. ONLY says which flags not every system reads, {name: systems}.
    full: whether to show the settings of all systems, and absl's own flags.
  """
  groups, texts = _groups(command), {}
  if full:
    groups['of absl'] = _of_absl()
  elif 'system' in groups:
    groups, texts = _of_system(command, groups)
  parts = [inspect.cleandoc(command.__doc__ or '')]
  for title, names in groups.items():
    if names:
      entries = (_entry(flags.FLAGS[name], texts.get(name)) for name in names)
      parts.append('\n'.join((f'{title}:', *entries)))
  end = (_SYSTEMS if texts else '') + _FILE
  return '\n\n'.join((*parts, flags.text_wrap(end, 80)))


def _groups(command: ModuleType) -> _Groups:
  """All flags of the command, by what they are about."""
  given = getattr(command, 'GROUPS', {})
  groups = {title: list(names) for title, names in given.items()}
  grouped = {name for names in groups.values() for name in names}
  key = flags.FLAGS.get_key_flags_for_module(command)
  rest = [flag.name for flag in key if flag.name not in grouped]
  if 'system' in groups:
    declared = settings.texts()
    groups['system'] += [name for name in rest if name in declared]
    rest = [name for name in rest if name not in declared]
  return groups | {'the rest' if groups else 'flags': rest}


def _of_absl() -> list[str]:
  return [
    flag.name
    for module, found in flags.FLAGS.flags_by_module_dict().items()
    if module.startswith('absl.')
    for flag in found
  ]


def _of_system(
  command: ModuleType, groups: _Groups
) -> tuple[_Groups, dict[str, str]]:
  """What concerns the system that --system names, and texts of its settings.

  Where that is none, such as with auto, the settings in other groups remain.
  """
  name, every = flags.FLAGS.system, settings.texts()
  system = selection.run_as(name, flags.FLAGS.variant)
  known = system in plans.SPECS
  texts = settings.texts(system) if known else every
  only = getattr(command, 'ONLY', {}) if name else {}
  unread = {flag for flag, systems in only.items() if name not in systems}
  unread |= every.keys() - texts.keys()
  shown: _Groups = {}
  for title, names in groups.items():
    shown[title] = [flag for flag in names if flag not in unread]
    if title == 'system':
      shown[title], declared = (
        [flag for flag in shown[title] if (flag in every) == setting]
        for setting in (False, True)
      )
      if known:
        order = list(texts)  # that of its config
        shown[f'settings of {system}'] = sorted(declared, key=order.index)
  return shown, texts


def _entry(flag: flags.Flag, text: str | None) -> str:
  """A flag and what it is; `text` says that of a setting of one system."""
  if text is None:
    text = flag.help or ''
    default = (flag.default_as_str or '').strip("'")
    if default not in ('', 'false'):
      text += f' (default {default})'
  name = f'[no]{flag.name}' if flag.boolean else flag.name
  return flags.text_wrap(f'--{name}: {text}', 80, '    ', '  ')
