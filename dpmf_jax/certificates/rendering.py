"""A certificate for people: as text, as Markdown, and as one page of HTML.

The words are those of `wording`; the formats only lay them out. Strings of a
certificate are data: each format escapes them.
"""

from __future__ import annotations

import html as html_escapes
import importlib.resources
import re
import string
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpmf_jax.certificates.wording import Section, notices, sections, title

_WIDTH = 79


def text(certificate: Mapping[str, Any]) -> str:
  """The whole certificate for a terminal, without a newline at the end."""
  lines = [f'PRIVACY CERTIFICATE: {title(certificate)}']
  for notice in notices(certificate):
    lines += ['', f'*** {notice.title} ***', *_wrapped(notice.words)]
  for section in sections(certificate):
    lines += ['', section.title.upper()]
    for paragraph in section.paragraphs:
      lines += _wrapped(paragraph, '  ')
    for item in section.items:
      lines += _wrapped(item, '  - ')
    rows = ((section.header,) if section.header else ()) + section.rows
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
      lines += _wrapped(value, f'  {name:{width}}  ')
  return '\n'.join(lines)


def aligned(rows: Iterable[Sequence[str]], side: str = '<') -> list[str]:
  """Rows of cells as lines with even columns, to the left or right ('>')."""
  rows = list(rows)
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = [
    '  '.join(map(f'{{:{side}{{}}}}'.format, row, widths)) for row in rows
  ]
  return [line.rstrip() for line in lines]


def markdown(certificate: Mapping[str, Any]) -> str:
  """The whole certificate as Markdown (CommonMark with tables)."""
  mark = _markdown_escaped
  lines = [f'# Privacy certificate: {mark(title(certificate))}']
  for notice in notices(certificate):
    lines += ['', f'> **{mark(notice.title)}.** {mark(notice.words)}']
  for section in sections(certificate):
    lines += ['', f'## {mark(section.title)}']
    for paragraph in section.paragraphs:
      lines += ['', mark(paragraph)]
    if section.items:
      lines += ['', *(f'- {mark(item)}' for item in section.items)]
    if section.rows:
      first, second = section.header or ('', '')
      lines += ['', f'| {mark(first)} | {mark(second)} |', '|---|---|']
      lines += [f'| {mark(a)} | {mark(b)} |' for a, b in section.rows]
  return '\n'.join(lines) + '\n'


def html(certificate: Mapping[str, Any]) -> str:
  """The whole certificate as one HTML page that needs no other file."""
  banners, body = html_parts(certificate)
  page = importlib.resources.files('dpmf_jax.certificates') / 'page.html'
  return string.Template(page.read_text(encoding='utf-8')).substitute(
    title=html_escapes.escape(title(certificate)), banners=banners, body=body
  )


def html_parts(certificate: Mapping[str, Any]) -> tuple[str, str]:
  """What a reader must see first, and all sections, for a page of HTML."""
  mark = html_escapes.escape
  banners = ''.join(
    f'<div class="notice {notice.kind}" role="note"><strong>'
    f'{mark(notice.title)}</strong><span>{mark(notice.words)}</span></div>\n'
    for notice in notices(certificate)
  )
  return banners, ''.join(map(_html_section, sections(certificate)))


def _html_section(section: Section) -> str:
  mark = html_escapes.escape
  name = section.title.lower().replace(' ', '-')
  parts = [f'<section class="{name}"><h2>{mark(section.title)}</h2>\n']
  parts += [f'<p>{mark(words)}</p>\n' for words in section.paragraphs]
  if section.items:
    items = ''.join(f'<li>{mark(item)}</li>\n' for item in section.items)
    parts.append(f'<ul>{items}</ul>\n')
  if section.header:
    head = ''.join(f'<th>{mark(word)}</th>' for word in section.header)
    rows = ''.join(
      f'<tr><td>{mark(a)}</td><td>{mark(b)}</td></tr>\n'
      for a, b in section.rows
    )
    parts.append(f'<table><tr>{head}</tr>\n{rows}</table>\n')
  elif section.rows:
    rows = ''.join(
      f'<div><dt>{mark(a)}</dt><dd>{mark(b)}</dd></div>\n'
      for a, b in section.rows
    )
    parts.append(f'<dl>{rows}</dl>\n')
  return ''.join(parts) + '</section>\n'


def _wrapped(words: str, indent: str = '') -> list[str]:
  rest = ' ' * len(indent)
  return textwrap.wrap(
    words,
    max(_WIDTH, len(indent) + 20),
    initial_indent=indent,
    subsequent_indent=rest,
    break_long_words=False,
    break_on_hyphens=False,
  ) or [indent.rstrip()]


def _markdown_escaped(words: str) -> str:
  words = re.sub(r'([\\`*_{}\[\]<>#|~$&])', r'\\\1', words)
  # What would start a list or a heading inside an item.
  words = re.sub(r'^([-+=])', r'\\\1', words)
  return re.sub(r'^(\d+)([.)](?:\s|$))', r'\1\\\2', words)
