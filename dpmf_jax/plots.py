"""Pictures where people would rather look."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmf_jax.files import write_bytes


def learning_curve(
  path: str | Path,
  curve: Sequence[Mapping[str, Any]],
  baselines: Mapping[str, float],
  *,
  title: str,
) -> None:
  """Writes a PNG of train and test RMSE by step, with baselines as lines."""
  # Imported here: matplotlib takes half a second that other calls need not
  # wait for. Figure without pyplot needs no display and keeps no state.
  from matplotlib.figure import Figure

  figure = Figure(figsize=(7, 4.2), layout='constrained')
  axes = figure.subplots()
  steps = [point['step'] for point in curve]
  top = max(baselines.values(), default=0.0)
  for name, label in (('train_rmse', 'training'), ('test_rmse', 'held out')):
    values = [point[name] for point in curve if name in point]
    if values:
      axes.plot(steps, values, marker='.', label=label)
      top = max(top, values[-1])
  for number, (name, value) in enumerate(baselines.items()):
    axes.axhline(
      value,
      linestyle=(0, (4, 1 + number)),
      linewidth=1,
      color=f'C{number + 2}',
      label=f'{name.replace("_", " ")} {value:.3f}',
    )
  axes.set_xlabel('step')
  axes.set_ylabel('RMSE')
  axes.set_title(title, fontsize=10)
  low = min([point['train_rmse'] for point in curve] + list(baselines.values()))
  margin = 0.1 * max(top - low, 0.05)
  # The first steps are far off; what matters is the range of the baselines.
  axes.set_ylim(low - margin, top + 3 * margin)
  axes.legend(fontsize=8, loc='upper right')
  picture = io.BytesIO()
  figure.savefig(picture, format='png', dpi=120)
  # For the curator: the curve is computed from ratings without noise.
  write_bytes(path, picture.getvalue(), mode=0o600)
