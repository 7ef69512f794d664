"""A certificate for people: as text, as Markdown, and as one page of HTML.

The words are those of `wording`; the formats only lay them out. Strings of a
certificate are data: each format escapes them.
"""

from __future__ import annotations

import html as html_escapes
import re
import textwrap
from collections.abc import Mapping
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
  mark = html_escapes.escape
  banners = ''.join(
    f'<div class="notice {notice.kind}" role="note"><strong>'
    f'{mark(notice.title)}</strong><span>{mark(notice.words)}</span></div>\n'
    for notice in notices(certificate)
  )
  body = ''.join(map(_html_section, sections(certificate)))
  return _PAGE.format(
    title=mark(title(certificate)), banners=banners, body=body
  )


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


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'">
<title>Privacy certificate: {title}</title>
<style>
@page {{ size: A4; margin: 10mm 13mm; }}
* {{ box-sizing: border-box; }}
body {{ font: 14px/1.42 system-ui, "Segoe UI", "Helvetica Neue", Arial,
  "Liberation Sans", sans-serif; color: #1d2630; background: #eef1f4;
  margin: 0; overflow-wrap: anywhere; }}
main {{ max-width: 900px; margin: 24px auto; padding: 34px 42px;
  background: #fff; border-top: 6px solid #27496d;
  box-shadow: 0 1px 6px #0003; }}
h1 {{ font-size: 23px; line-height: 1.2; margin: 0 0 14px; }}
h1 small {{ display: block; font-size: 12px; font-weight: 600;
  letter-spacing: .09em; text-transform: uppercase; color: #5b6875; }}
h2 {{ font-size: 14px; margin: 0 0 4px; color: #27496d; }}
p {{ margin: 0 0 6px; }}
ul {{ margin: 0; padding-left: 17px; }}
li {{ margin-bottom: 3px; }}
.notice {{ display: flex; gap: 14px; align-items: baseline; padding: 9px 14px;
  margin-bottom: 10px; border-left: 6px solid; border-radius: 3px; }}
.notice strong {{ flex: none; max-width: 32%; }}
.proved {{ background: #e6f3ea; border-color: #2b7a45; }}
.proved strong {{ color: #1f5f35; }}
.claimed, .none {{ background: #fbe6e4; border-color: #b3261e; }}
.claimed strong, .none strong {{ color: #8f1d17; }}
.experiment, .weak {{ background: #fdf1d8; border-color: #b36b00; }}
.experiment strong, .weak strong {{ color: #7d4b00; }}
.sections {{ display: grid; grid-template-columns: 1fr 1fr;
  grid-template-rows: auto auto auto 1fr; gap: 14px 28px;
  margin-top: 16px; }}
.how-strongly, .epsilon-of-each-rating, .what-this-rests-on,
  .how-it-was-done, .settings, .versions {{ grid-column: 1 / -1; }}
.epsilon-of-each-rating dl {{ columns: 3; column-gap: 18px; }}
.epsilon-of-each-rating dd {{ font-weight: 600; }}
.how-strongly {{ background: #f4f7fa; padding: 11px 14px; border-radius: 3px;
  display: grid; grid-template-columns: 3fr 2fr; column-gap: 26px;
  grid-template-rows: auto; align-items: start; }}
.how-strongly h2, .how-strongly p {{ grid-column: 1; }}
.how-strongly table {{ grid-column: 2; grid-row: 1 / span 9; }}
table {{ border-collapse: collapse; width: 100%; font-size: 13px; }}
th {{ text-align: left; font-weight: 600; vertical-align: bottom;
  border-bottom: 1.5px solid #27496d; padding: 2px 6px 3px 0; }}
td {{ border-bottom: 1px solid #d4dbe2; padding: 3px 6px 3px 0; }}
th + th, td + td {{ text-align: right; padding-right: 0; }}
td + td {{ font-weight: 600; }}
.what-is-not-protected {{ grid-row: span 2; }}
.what-this-rests-on, .how-it-was-done, .settings, .versions
  {{ font-size: 11.5px; line-height: 1.36; color: #36424e;
  border-top: 1px solid #d4dbe2; padding-top: 9px; }}
.what-this-rests-on ul {{ columns: 2; column-gap: 28px; }}
.what-this-rests-on li {{ break-inside: avoid; }}
dl {{ margin: 0; }}
dl div {{ display: flex; gap: 8px; }}
dt {{ flex: none; color: #5b6875; }}
dd {{ margin: 0; }}
.how-it-was-done dt {{ width: 82px; }}
.settings dl {{ columns: 4; column-gap: 18px; }}
.settings div {{ break-inside: avoid; justify-content: space-between; }}
.settings dd {{ text-align: right; }}
.versions dl {{ display: flex; flex-wrap: wrap; gap: 0 18px; }}
@media (max-width: 640px) {{
  main {{ padding: 20px; margin: 0; }}
  .sections, .how-strongly {{ display: block; }}
  section {{ margin-bottom: 14px; }}
  .notice {{ display: block; }}
  .notice strong {{ display: block; }}
  .settings dl, .what-this-rests-on ul {{ columns: 1; }}
}}
@media print {{
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
  body {{ background: #fff; font-size: 8.2pt; line-height: 1.28; }}
  main {{ margin: 0; padding: 8px 0 0; max-width: none; box-shadow: none; }}
  h1 {{ font-size: 15pt; margin-bottom: 7px; }}
  h2 {{ font-size: 9pt; margin-bottom: 2px; }}
  .sections {{ gap: 6px 20px; margin-top: 8px; }}
  .notice {{ padding: 6px 10px; margin-bottom: 6px; }}
  .how-strongly {{ padding: 7px 10px; }}
  table {{ font-size: 8.2pt; }}
  td {{ padding: 1px 5px 1px 0; }}
  li {{ margin-bottom: 1px; }}
  p {{ margin-bottom: 3px; }}
  .what-this-rests-on, .how-it-was-done, .settings, .versions
    {{ font-size: 6.7pt; line-height: 1.24; padding-top: 4px; }}
}}
</style>
</head>
<body>
<main>
<h1><small>Privacy certificate</small>{title}</h1>
{banners}<div class="sections">
{body}</div>
</main>
</body>
</html>
"""


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
