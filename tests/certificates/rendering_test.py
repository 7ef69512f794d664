import copy
import html.parser
import json
import string

import pytest
from certified import make
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax import certificates
from dpmf_jax.certificates import rendering, wording

FORMATS = [rendering.text, rendering.markdown, rendering.html]
KINDS = {
  'proved': {},
  'replace': {'relation': 'replace'},
  'claimed': {'variant': 'paper'},
  'none': {'name': 'nonprivate', 'variant': 'none'},
  'seed': {'seed': 7},
}
GOOD = make()[1]
VOID = {'meta', 'br'}


class Page(html.parser.HTMLParser):
  """The words of a page, its tags, and whether they are closed in order."""

  def __init__(self, content):
    super().__init__(convert_charrefs=True)
    self.words, self.tags, self.attributes, self.open = '', [], [], []
    self.feed(content)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += [(tag, *attribute) for attribute in attrs]
    if tag not in VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if self.open and self.open[-1] != 'style':
      self.words += data

  def handle_decl(self, decl):
    assert decl.lower() == 'doctype html'

  def handle_comment(self, data):
    raise AssertionError(data)


def words(content, render):
  """What a reader sees, on one line."""
  if render is rendering.html:
    content = Page(content).words
  if render is rendering.markdown:
    for mark in string.punctuation:
      content = content.replace(f'\\{mark}', mark)
  return ' '.join(content.split())


@pytest.mark.parametrize('render', FORMATS)
@pytest.mark.parametrize('kind', KINDS)
def test_every_entry_is_there(kind, render):
  document = make(**KINDS[kind])[1]
  shown = words(render(document), render)
  entries = [
    *document['released'],
    *document['secret'],
    *document['assumptions'],
    *document['parameters'],
    *document['versions'].values(),
    document['mechanism'],
    document['accountant'],
    document['randomness']['source'],
    document['schema'],
  ]
  if document['event']:
    entries.append(json.dumps(document['event']))
  for entry in entries:
    assert entry in shown
  for entry in (*document['not_covered'], document['adversary']):
    assert entry[1:] in shown  # a sentence begins with a capital


@pytest.mark.parametrize('render', FORMATS)
def test_the_standing_cannot_be_missed(render):
  shown = {k: words(render(make(**v)[1]), render) for k, v in KINDS.items()}
  assert 'CLAIMED BY THE PAPER, NOT A GUARANTEE' in shown['claimed']
  assert 'Treat the model as not private' in shown['claimed']
  assert 'If the claim were true' in shown['claimed']
  assert 'NOT PRIVATE' in shown['none']
  assert 'FOR EXPERIMENTS ONLY' in shown['seed']
  assert 'Do not release this model' in shown['seed']
  for kind in ('proved', 'replace'):
    assert 'PROVED' in shown[kind]
    assert 'EXPERIMENTS' not in shown[kind]
    assert 'CLAIM' not in shown[kind].upper()
  for kind in ('claimed', 'none'):
    assert 'PROVED' not in shown[kind]
    assert 'is a strong bound' not in shown[kind]


@pytest.mark.parametrize('render', FORMATS)
def test_formats_have_the_same_words(render):
  for kind in KINDS.values():
    document = make(**kind)[1]
    shown = words(render(document), render)
    for notice in wording.notices(document):
      assert notice.words in shown
    for section in wording.sections(document):
      assert section.title.lower() in shown.lower()
      for sentence in section.paragraphs + section.items:
        assert sentence.replace(' - ', ' ') in shown


def test_the_page_needs_nothing_else():
  content = rendering.html(make()[1])
  page = Page(content)
  assert not {'script', 'link', 'img', 'iframe', 'object'} & set(page.tags)
  assert not {'src', 'href', 'onload'} & {a for _, a, _ in page.attributes}
  for word in ('url(', '@import', 'http:', 'https:'):
    assert word not in content
  assert content.isascii()


HOSTILE = [
  '<script>alert(1)</script>',
  '"><img src=x onerror=alert(1)>',
  "' onmouseover='x",
  '</style></title></main>',
  '<!-- --><![CDATA[',
  '&lt;b&gt; &amp; &#60;',
  '{title} {0} %s',
  '| a | b |',
  '`code` *b* _i_ [x](http://y) ![z](w) # h ~~s~~ $m$',
  '1. one',
  '- one',
  '\x1b[2J\x1b[31mPROVED',
  'a\r\nb\n\n# c',
  '\u202eDEVORP',
  '\ud800',
]


def poisoned(text):
  document = copy.deepcopy(GOOD)
  for name in ('adversary', 'mechanism', 'accountant', 'system'):
    document[name] = f'x {text}'
  for name in ('released', 'secret', 'not_covered', 'assumptions'):
    document[name] = [f'x {text}', text + ' x']
  document['parameters'] |= {f'x {text}': text, 'dataset': text, 'list': [text]}
  document['randomness']['note'] = f'x {text}'
  document['event'] = {f'x {text}': {text: text}}
  document['versions'][f'x {text}'] = f'x {text}'
  certificates.validate(document)
  return document


def check_hostile(text):
  document = poisoned(text)
  page = Page(rendering.html(document))
  harmless = Page(rendering.html(poisoned('harmless')))
  assert page.tags == harmless.tags
  assert page.attributes == harmless.attributes
  if text.isprintable():
    assert f'x {" ".join(text.split())}'.strip() in page.words
  for render in FORMATS:
    content = render(document)
    content.encode()
    assert not set(content) & {'\x1b', '\r', '\u202e', '\x00'}
  lines = rendering.markdown(document).splitlines()
  good = rendering.markdown(poisoned('harmless')).splitlines()
  # No string makes a line of its own, a heading or a cell.
  assert len(lines) == len(good)
  for line, other in zip(lines, good, strict=True):
    assert line[:2] == other[:2]
    bars = lambda s: s.replace('\\\\', '').replace('\\|', '').count('|')
    assert bars(line) == bars(other)


@pytest.mark.parametrize('text', HOSTILE)
def test_hostile_strings_stay_strings(text):
  check_hostile(text)


@given(st.text(min_size=1))
def test_any_string_stays_a_string(text):
  check_hostile(text)


def test_markdown_list_and_table_syntax_is_escaped():
  content = rendering.markdown(poisoned('1. one'))
  assert '- 1\\. one x' in content
  assert '- \\- one x' in rendering.markdown(poisoned('- one'))
  assert '\\|' in rendering.markdown(poisoned('a|b'))


def test_text_fits_a_terminal():
  for kind in KINDS.values():
    lines = rendering.text(make(**kind)[1]).splitlines()
    assert max(map(len, lines)) <= 80
