"""A page that recommends at home: one file for a browser, and no server.

It is made of what is published of a model alone, and does in the browser what
`folding` does here: whoever opens it says what they like, and their row, their
list and the reasons for it are worked out on their machine (`page.js`). Its
policy forbids it the network and any script but its own, which is named by its
hash.

Privacy: post-processes the release. No number of a user is in the page, known
or secret, and what is clicked stays in it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import math
import os
import string
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpmf_jax import files
from dpmf_jax.certificates import rendering, wording
from dpmf_jax.kernels.profiles import counts
from dpmf_jax.serving.folding import fit_of_new_users
from dpmf_jax.serving.models import Model
from dpmf_jax.serving.recommendations import listing, one_order
from dpmf_jax.types import Fit, Sum

_LARGEST = 2**15 - 1  # of int16: with 8 bits scores were wrong by 1e-2
_MOST_STARS = 10


def write_page(
  model: Model,
  certificate: Mapping[str, Any],
  path: str | os.PathLike[str],
  *,
  k: int = 10,
) -> None:
  """Returns nothing; `path` is then the page of `page_of`."""
  files.write_bytes(path, page_of(model, certificate, k=k).encode())


def page_of(
  model: Model, certificate: Mapping[str, Any], *, k: int = 10
) -> str:
  """A page of HTML that needs no other file.

  Args:
    model: its item factors must be released.
    certificate: of the model, whose headline is shown and which can be read.
    k: how long lists are.

  Privacy: see the module.
  """
  numbers = _numbers(model, fit_of_new_users(model))
  if k < 1:
    raise ValueError(f'k={k} must be at least 1')
  # Names are anybody's text, and must not end the element that they are in.
  data = json.dumps(numbers | {'k': int(k)}, allow_nan=False)
  for mark in '<>&':
    data = data.replace(mark, f'\\u{ord(mark):04x}')
  script, style = _part('page.js'), _part('page.css')
  banners, certified = rendering.html_parts(certificate)
  protected = ' '.join(wording.sections(certificate)[0].paragraphs)
  return string.Template(_part('page.html')).substitute(
    title=html.escape(wording.title(certificate)),
    protected=html.escape(protected),
    banners=banners,
    certified=certified,
    script=script,
    script_hash=_hash(script),
    style=style,
    style_hash=_hash(style),
    data=data,
  )


def _part(name: str) -> str:
  """The text of a file beside this one."""
  file = importlib.resources.files('dpmf_jax.serving') / name
  return file.read_text(encoding='utf-8')


def _hash(text: str) -> str:
  """What a policy calls a script or a style by."""
  digest = hashlib.sha256(text.encode()).digest()
  return f'sha256-{base64.b64encode(digest).decode()}'


def _numbers(model: Model, fit: Fit | Sum) -> dict[str, Any]:
  """What `page.js` reads: item c of row i is whole_ic * row_i * column_c.

  With a size for each column and for each row: items that few people know are
  smaller than others by orders of magnitude, and so may columns be.
  """
  item = model.item_factors.astype(np.float64)
  column = _positive(np.abs(item).max(axis=0))
  item = item / column[None]
  row = _positive((np.abs(item).max(axis=1) / _LARGEST).astype('<f4'))
  whole = np.rint(item / row[:, None]).astype('<i2')
  names = map(str, model.item_ids.tolist())
  found = {
    'names': [str(model.titles.get(name) or name) for name in names],
    'whole': _base64(whole),
    'row': _base64(row),
    'column': column.tolist(),
    'offset': float(model.offset),
    'prior': np.asarray(fit.prior, np.float64).tolist(),
    'same': one_order(model.item_factors),
  }
  if (how := listing(model.number, model.scale)) is not None:
    found['share'] = _base64(how.share.astype('<f4'))
    found['floor'] = how.floor
  if isinstance(fit, Sum):
    like = model.scale[1]
    found['like'] = like
    found['counted'] = float(counts(jnp.float32(like), fit.counted))
    found['weight'] = _base64(np.asarray(fit.weight, '<f4'))
  else:
    spread = 1 / np.sqrt(np.asarray(fit.ridge, np.float64))
    found['spread'] = spread.tolist()
    found['stars'] = _stars(*model.scale)
    found['scale'] = list(model.scale)
  return found


def _positive(sizes: np.ndarray) -> np.ndarray:
  """`sizes`, and 1 where they are 0: of nothing but zeros."""
  return np.where(sizes > 0, sizes, np.ones_like(sizes))


def _base64(numbers: np.ndarray) -> str:
  return base64.b64encode(numbers.tobytes()).decode()


def _stars(low: float, high: float) -> list[float]:
  """Ratings to choose from: whole ones, or five where those are many."""
  whole = range(math.ceil(low), math.floor(high) + 1)
  if 2 <= len(whole) <= _MOST_STARS:
    return list(map(float, whole))
  return np.linspace(low, high, 5).tolist()
