"""A finished run: what it released, what is stated of it, how good it is."""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import io
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax import files
from dpmf_jax.certificates import wording
from dpmf_jax.evaluation import plots, ranking
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.runs import folders
from dpmf_jax.serving import models, recommendations
from dpmf_jax.types import Guarantee, Release, released

_LABELS = {'train': 'training', 'test': 'held out'}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Run:
  """What `train` returns; print it to see how good and how private it is.

  Privacy: `release` is what the certificate covers. `model`, `metrics`, and
  with them what is printed, are the curator's own.

  Attributes:
    whole: both sides of the model. Of several processes the first one has all
      users, and the others have none.
    guarantee: of the system that ran.
    certificate: what is stated of `release`, as in certificate.json.
    metrics: accuracy, baselines and the learning curve, as in metrics.json.
    train: the ratings that were trained on.
    folder: where it was written; None if it was not.
  """

  whole: Release
  guarantee: Guarantee
  certificate: dict[str, Any]
  metrics: dict[str, Any]
  train: Ratings
  folder: Path | None = None

  @property
  def release(self) -> Release:
    """What may leave the curator."""
    return released(self.whole, self.guarantee.released)

  @functools.cached_property
  def model(self) -> models.Model:
    """The model with original ids, to recommend from."""
    return models.model_from_release(
      self.release,
      self.train,
      whole=self.whole,
      bias_columns=models.bias_columns(self.certificate),
    )

  def recommend(
    self,
    users: Any = None,
    k: int = 10,
    *,
    filter_seen: bool = True,
    why: int = 0,
    blend: models.Model | None = None,
  ) -> list[recommendations.Recommendation]:
    """The k best items for each user; see `dpmf_jax.recommend`."""
    return recommendations.recommend(
      self.model, users, k, filter_seen=filter_seen, why=why, blend=blend
    )

  def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
    """The folder with this run in it, as `dpmf train --output` writes it."""
    if not overwrite and folders.interrupted(Path(folder)):
      raise ValueError(
        f'folder={folder} holds an interrupted run; choose another folder, or '
        'pass overwrite=True to drop it'
      )
    with folders.opened(folder, overwrite=overwrite) as path:
      if overwrite:
        folders.clear(path)
      self.write(path)
    return path

  def write(self, folder: Path) -> None:
    """Writes everything into a folder that `folders.opened` has made."""
    folders.write_model(folder, self.whole, self.guarantee, self.train)
    files.write_json(folder / 'metrics.json', self.metrics, mode=0o600)
    if self.metrics['task'] == 'rating':
      self._plot_curve(folder / 'learning_curve.png')
      shares = dict(self.metrics['error_cdf'])
      plots.error_cdf(
        folder / 'error_cdf.png',
        shares.pop('errors'),
        {_LABELS[part]: values for part, values in shares.items()},
        title=self.title,
      )
    folders.finish(folder, self.certificate)

  @property
  def title(self) -> str:
    """The system, the data and what is stated, in a line."""
    name, found = self.metrics['system'], self.certificate
    title = f'{name} ({self.metrics["variant"]}) on {self.train.name}'
    if found['epsilon'] is not None:
      title += f', {found["status"]} epsilon {found["epsilon"]:.3g}'
    return title

  def _errors(self) -> list[tuple[float, str]]:
    """RMSE of the model and of baselines, where it predicts ratings."""
    if self.metrics['task'] != 'rating':
      return []
    baselines = self.metrics['baselines'].items()
    found = [
      (self.metrics['test_rmse'], 'this model, held out'),
      *((v, f'{k.replace("_", " ")} (not private)') for k, v in baselines),
      (self.metrics['train_rmse'], 'this model, training ratings'),
    ]
    return [(value, label) for value, label in found if value is not None]

  def _beaten(self) -> list[str]:
    """A line that names the means that predict held-out ratings better.

    Biases of both sides are no such means: they are a model, and not private.
    """
    own = self.metrics.get('test_rmse')
    better = [
      f'the {name.replace("_", " ")} ({value:.4f})'
      for name, value in self.metrics.get('baselines', {}).items()
      if name != 'bias' and own is not None and own > value
    ]
    if not better:
      return []
    return [
      f'  warning: {own:.4f} on held-out ratings is worse than '
      f'{" and ".join(better)}; more epsilon may help'
    ]

  def _plot_curve(self, path: Path | io.BytesIO) -> None:
    curve, baselines = self.metrics['curve'], self.metrics['baselines']
    plots.learning_curve(path, curve, baselines, title=self.title)

  def __repr__(self) -> str:
    lines = [self.title, *self._beaten()]
    lines += [f'  RMSE {value:.4f}  {label}' for value, label in self._errors()]
    if 'ranking' in self.metrics:
      space = [''] if len(lines) > 1 else []
      lines += [*space, ranking.text(self.metrics['ranking'])]
    lines += self._notes()
    return '\n'.join([*lines, '', wording.summary(self.certificate)])

  def _notes(self) -> list[str]:
    item = self.whole.factors.item
    one = item is not None and recommendations.one_order(np.asarray(item))
    lists = '; for lists, train with the task ranking'
    own = lists if self.metrics['task'] == 'rating' else ''
    return ['', f'note: {recommendations.ONE_ORDER}{own}'] if one else []

  def _repr_html_(self) -> str:
    """The same for a notebook, with the learning curve."""
    mark = html.escape
    notices = ''.join(
      f'<p><strong>{mark(notice.title)}</strong> {mark(notice.words)}</p>'
      for notice in wording.notices(self.certificate)
    )
    return (
      f'<h4>{mark(self.title)}</h4>{self._beaten_html()}{notices}'
      f'{self._accuracy_html()}<details>'
      '<summary>What is guaranteed, and what must stay secret</summary><pre>'
      f'{mark(wording.summary(self.certificate))}</pre></details>'
    )

  def _beaten_html(self) -> str:
    return ''.join(f'<p>{html.escape(said)}</p>' for said in self._beaten())

  def _accuracy_html(self) -> str:
    mark, parts = html.escape, []
    if errors := self._errors():
      rows = ''.join(
        f'<tr><td>{value:.4f}</td><td style="text-align:left">{mark(label)}'
        '</td></tr>'
        for value, label in errors
      )
      picture = io.BytesIO()
      self._plot_curve(picture)
      encoded = base64.b64encode(picture.getvalue()).decode()
      parts = [
        f'<table><tr><th>RMSE</th><th></th></tr>{rows}</table>',
        '<img alt="learning curve" width="560" '
        f'src="data:image/png;base64,{encoded}">',
      ]
    if 'ranking' in self.metrics:
      parts.append(f'<pre>{mark(ranking.text(self.metrics["ranking"]))}</pre>')
    parts += [f'<p>{mark(note)}</p>' for note in self._notes() if note]
    return ''.join(parts)
