"""What mkdocs does when it builds the site, besides what it does by itself.

Pages are made of the code: one for each room, from its docstrings, and one with
all public names. Whatever is in docs/privacy/ is in the menu. Lists, which are
written as GitHub reads them, are turned into what Python-Markdown reads, and
the graph, which GitHub draws with a script, into a drawing. Short code stays on
one line.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import dpmf_jax
from docs.drawing import drawn
from docs.lists import listed

# Flags and not functions: `dpmf COMMAND --help` has them.
_NO_PAGE = {'commands'}
_SHORT = re.compile(r'<code>([^<\s]{1,28})</code>')
# What people look for, and the rooms in which it is.
_PARTS = {
  'Train, and what comes of it': ('runs', 'keys'),
  'Ratings': ('ratings',),
  'Lists': ('serving',),
  'How good it is': ('evaluation',),
  'How private it is': ('accounting', 'auditing'),
  'Systems of your own': ('systems', 'training', 'rows', 'types'),
}


def rooms() -> list[str]:
  """The rooms that have a page, by name."""
  found = {room.name for room in pkgutil.iter_modules(dpmf_jax.__path__)}
  return sorted(found - _NO_PAGE)


def room_page(room: str) -> str:
  """The page of a room: what its docstrings say."""
  return f'# dpmf_jax.{room}\n\n::: dpmf_jax.{room}\n    options:\n' + (
    '      show_root_heading: false\n      show_root_toc_entry: false\n'
  )


def names_page() -> str:
  """The page with every public name of `dpmf_jax`, each with its first line."""
  public = dpmf_jax._public()
  systems = [name for name, module in public.items() if not module]
  lines = [
    '# API',
    '',
    'All of this is in `dpmf_jax` itself, and loaded on first use.',
    'The pages of the modules have the rest.',
  ]
  known = {room for wanted in _PARTS.values() for room in wanted}
  others = {module.split('.')[0] for module in public.values() if module}
  parts = _PARTS | {'More': tuple(sorted(others - known - {'plans'}))}
  for part, wanted in parts.items():
    found = [
      _row(name, f'dpmf_jax.{module}.{name}')
      for room in wanted
      for name, module in sorted(public.items())
      if module.split('.')[0] == room
    ]
    if found:
      head = ['| name | what it is |', '|---|---|']
      lines += ['', f'## {part}', '', *head, *found]
  lines += [
    '',
    '## Systems',
    '',
    'Each is a function of keywords, which are the settings of its config, and',
    'returns a `System`.',
    '',
    '| function | config | what it is |',
    '|---|---|---|',
  ]
  from dpmf_jax.plans import SPECS

  for name in systems:
    spec = SPECS[name]
    config = spec.config.__name__
    link = f'[`{config}`][dpmf_jax.plans.{name}.{config}]'
    lines.append(f'| `{name}` | {link} | {_cell(spec.help)} |')
  return '\n'.join([*lines, ''])


def _row(name: str, target: str) -> str:
  text = (inspect.getdoc(getattr(dpmf_jax, name)) or '').split('\n\n')[0]
  return f'| [`{name}`][{target}] | {_cell(text)} |'


def _cell(text: str) -> str:
  return ' '.join(text.split()).replace('|', '\\|')


def _unlisted(nav: Any, folder: Path) -> list[str]:
  """Pages in a folder of docs/ that the menu does not name."""
  named = set(re.findall(r'[\w/]+\.md', str(nav)))
  pages = (f'{folder.name}/{path.name}' for path in folder.glob('*.md'))
  return sorted(set(pages) - named)


def on_config(config: Any) -> Any:
  """The config with all pages in its menu."""
  parts = {title: part for each in config.nav for title, part in each.items()}
  folder = Path(config.docs_dir) / 'privacy'
  parts['Privacy'] += _unlisted(config.nav, folder)
  parts['Reference'].append(
    {'Modules': [{room: f'reference/{room}.md'} for room in rooms()]}
  )
  return config


def on_files(files: Files, *, config: Any) -> Files:
  """The files with those that are made here."""
  made = {f'reference/{room}.md': room_page(room) for room in rooms()}
  made['reference/index.md'] = names_page()
  for name, text in made.items():
    files.append(File.generated(config, name, content=text))
  return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
  """The page with its graph drawn, and lists as Python-Markdown has them."""
  return drawn('\n'.join(listed(markdown.split('\n'))))


def on_page_content(html: str, **kwargs: Any) -> str:
  """The page in which short code is not broken, as after the -- of a flag."""
  return _SHORT.sub(r'<code class="whole">\1</code>', html)


class Examples(griffe.Extension):
  """Puts examples in docstrings, which are indented, into fences."""

  def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
    if obj.docstring:
      obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
  """A docstring in which examples are code, and brackets are no links."""
  return '\n\n'.join(_part(part) for part in text.split('\n\n'))


def _part(text: str) -> str:
  if text.startswith('>>> '):
    return f'```pycon\n{text}\n```'
  if text and all(line.startswith('  ') for line in text.splitlines()):
    return f'```\n{inspect.cleandoc(text)}\n```'
  return text.replace('][', ']\\[').replace('[,', '\\[,')
