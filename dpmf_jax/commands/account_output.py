"""The answers of dpmf account as a table and as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from dpmf_jax import accounting, files
from dpmf_jax.certificates.rendering import aligned
from dpmf_jax.commands import accounts
from dpmf_jax.commands.accounts import Answer


def show_table(
  by: str, answers: Sequence[dict[str, Any]], path: str | None
) -> None:
  """Prints one row for each answer, and writes them all to a CSV file."""
  rows = [_flat(answer) for answer in answers]
  names = list(dict.fromkeys(name for row in rows for name in row))
  if path is not None:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    files.write_bytes(path, text.getvalue().encode())
  # What is the same in all rows is said once, above them.
  columns = [by] + [
    name
    for name in names
    if name != by
    and (name == 'epsilon' or len({row.get(name) for row in rows}) > 1)
  ]
  fixed = {k: v for k, v in rows[0].items() if k not in columns}
  print(', '.join(f'{name} {_cell(value)}' for name, value in fixed.items()))
  status = rows[0]['status']
  heads = [f'epsilon ({status})' if c == 'epsilon' else c for c in columns]
  lines = [heads] + [[_cell(row.get(c)) for c in columns] for row in rows]
  print(*aligned(lines, '>'), sep='\n')
  if status == 'claimed':
    print(
      'epsilon is a claim of the paper, not a guarantee. same_noise_*: proved '
      'for that noise if only the noised gradient leaked, which is not so here.'
    )


def _flat(answer: dict[str, Any]) -> dict[str, Any]:
  """The answer without nesting, for a row."""
  row = {}
  for name, value in answer.items():
    if isinstance(value, dict):
      short = 'same_noise' if name == accounts.SAME_NOISE else name
      row |= {f'{short}_{part}': number for part, number in value.items()}
    else:
      row[name] = value
  return row


def _cell(value: Any) -> str:
  return f'{value:.6g}' if isinstance(value, float) else str(value)


def draw(path: str, by: str, system: str, answer: Answer) -> None:
  """Writes epsilon against steps, or delta, for the noise of the answer."""
  from dpmf_jax.evaluation import plots

  values, status = answer.values, answer.values['status']
  name = f'{system} (paper)' if status == 'claimed' else system
  for setting in ('noise_multiplier', 'epsilon_per_release'):
    if setting in values:
      name += f', {setting.replace("_", " ")} {values[setting]:.4g}'
      break
  if by == 'delta':
    return plots.epsilon_by_delta(
      path,
      answer.event,
      claim=answer.claim,
      status=status if answer.claim is None else 'proved',
      title=f'{name}, {values["steps"]} steps',
    )
  many = 60 if isinstance(answer.event, accounting.Gaussian) else 20
  steps, delta = plots.step_grid(values['steps'], many), values['delta']
  claim = None
  if answer.claim is not None:
    parts = [accounting.prefix(answer.claim, count) for count in steps]
    claim = [accounting.epsilon(part, delta) for part in parts]
  plots.epsilon_curves(
    path,
    steps,
    x_label='steps',
    points=[plots.bounds_shown(answer.spent(count), delta) for count in steps],
    claim=claim,
    status=status,
    title=f'{name}, delta {delta:g}',
  )
