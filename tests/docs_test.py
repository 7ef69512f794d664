"""The rooms of the house, and what docs/ says of the code."""

import pkgutil
import re
import subprocess
import sys

import pytest

from docs import build, lists


def test_no_room_imports_one_below_it():
  order = {room: place for place, room in enumerate(build.ROOMS)}
  wrong = {
    edge: files
    for edge, files in build.edges().items()
    if order[edge[0]] < order[edge[1]]
  }
  assert not wrong


def test_every_module_is_in_a_room():
  folder = build.ROOT / 'dpmf_jax'
  names = {found.name for found in pkgutil.iter_modules([folder])}
  assert names == set(build.ROOMS)


@pytest.mark.parametrize('room', build.WITHOUT_JAX)
def test_rooms_without_jax(room):
  code = f"""
import importlib, pkgutil, sys
room = importlib.import_module('dpmf_jax.{room}')
path = getattr(room, '__path__', ())
for found in pkgutil.walk_packages(path, room.__name__ + '.'):
  importlib.import_module(found.name)
assert not {{'jax', 'jaxlib', 'optax'}} & set(sys.modules)
"""
  subprocess.run([sys.executable, '-c', code], check=True, cwd=build.ROOT)


@pytest.mark.parametrize('page', ['systems', 'design'])
def test_docs_are_up_to_date(page):
  written = (build.ROOT / 'docs' / f'{page}.md').read_text()
  assert written == getattr(build, page)(), 'run python -m docs.build'


PAGES = sorted(
  str(path.relative_to(build.ROOT)) for path in build.ROOT.glob('docs/**/*.md')
)


@pytest.mark.parametrize('page', PAGES)
def test_what_pages_cite_is_there(page):
  text = (build.ROOT / page).read_text()
  for file, test in re.findall(r'(tests/[\w/]+\.py)::(test_\w+)', text):
    source = (build.ROOT / file).read_text()
    assert re.search(rf'^def {test}\(', source, re.M), f'{file}::{test}'
  for file in re.findall(r'`([\w/]+/[a-z_]+\.py)`', text):
    places = (build.ROOT / file, build.ROOT / 'dpmf_jax' / file)
    assert any(place.exists() for place in places), file


@pytest.mark.parametrize(
  ('text', 'want'),
  [
    ('- a\n  b\n- c', '- a\n    b\n- c'),
    ('text\n- a\n- b', 'text\n\n- a\n- b'),
    (
      '1. a\n\n       code\n\n   b\n2. c',
      '1. a\n\n        code\n\n    b\n\n2. c',
    ),
    ('1. a\n   - b\n     c\n2. d', '1. a\n\n    - b\n        c\n\n2. d'),
    ('```\n- a\n  b\n```', '```\n- a\n  b\n```'),
    ('    1. code\n', '    1. code\n'),
  ],
)
def test_lists_are_put_as_the_site_reads_them(text, want):
  assert '\n'.join(lists.listed(text.split('\n'))) == want
