"""A ledger for people and programs: the formats of dpmf account --ledger.

Each takes what `accounting.ledger.report` gives. Words in it are data: HTML
escapes them.
"""

from __future__ import annotations

import html as html_escapes
import json
from typing import Any

from absl import flags

from dpmf_jax.accounting.ledger_costs import plain, shown, what_fits
from dpmf_jax.certificates.rendering import aligned

_HEADS = 'row', 'time', 'system', 'variant', 'epsilon', 'what'
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 14px/1.42 system-ui, sans-serif; color: #1d2630;
  max-width: 1100px; margin: 24px auto; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; width: 100%; margin: 16px 0; }}
th, td {{ text-align: left; vertical-align: top; padding: 3px 12px 3px 0;
  border-bottom: 1px solid #d4dbe2; }}
</style>
</head>
<body>
<h1>{title}</h1>
<table>
{facts}
</table>
<table>
{rows}
</table>
</body>
</html>"""


def budget(name: str) -> Any:
  """The value of a flag: a number, 'unlimited' or None."""
  value = flags.FLAGS[name].value
  if value in (None, 'unlimited'):
    return value
  try:
    return float(value)
  except ValueError:
    raise ValueError(
      f"--{name}={value} must be a number or 'unlimited'"
    ) from None


def text(report: dict[str, Any]) -> str:
  """The report for a terminal."""
  facts = _facts(report)
  width = max(map(len, facts))
  lines = [f'{name:{width}}  {value}' for name, value in facts.items()]
  return '\n'.join((*lines, '', *aligned([_HEADS, *_rows(report)])))


def html(report: dict[str, Any]) -> str:
  """The report as one page that needs no other file."""
  return _PAGE.format(
    title=html_escapes.escape(f'Ledger of {report["dataset"]}'),
    facts='\n'.join(_line('td', fact) for fact in _facts(report).items()),
    rows='\n'.join(
      [_line('th', _HEADS), *(_line('td', row) for row in _rows(report))]
    ),
  )


FORMATS = {
  'text': text,
  'html': html,
  'json': lambda report: json.dumps(report, allow_nan=False),
}


def _line(tag: str, cells: tuple[str, ...]) -> str:
  inner = (f'<{tag}>{html_escapes.escape(cell)}</{tag}>' for cell in cells)
  return f'<tr>{"".join(inner)}</tr>'


def _facts(report: dict[str, Any]) -> dict[str, str]:
  return {
    'ledger': report['ledger'],
    'data set': f'{report["dataset"]}, unit {report["unit"]}, relation '
    f'{report["relation"]}',
    'budget': f'{_budget(report["budget_epsilon"])} at delta '
    f'{plain(report["delta"])}',
    'releases': str(report['releases']),
    'spent': f'epsilon {shown(report["counted_epsilon"])}',
    'left': what_fits(report['left_epsilon']),
    'holds': report['holds'],
    'total': f'epsilon {shown(report["epsilon"])}, {report["caveat"]}',
    'last hash': report['head'],
  }


def _rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
  """The cells of each row, of releases and of budgets."""
  rows = []
  for row in report['rows']:
    if 'event' in row:
      cells = row['system'], row['variant'], shown(row['epsilon']), row['what']
    else:
      why = row.get('reason', 'begun')
      cells = 'budget', '', '', f'{_budget(row["budget_epsilon"])}: {why}'
    rows.append((str(row['number']), row['time'], *cells))
  return rows


def _budget(budget: float | str) -> str:
  return budget if isinstance(budget, str) else f'epsilon {budget:.9g}'
