"""The page that recommends at home, as text and in a real browser."""

import base64
import hashlib
import html.parser
import http.server
import json
import re
import threading

import browser as browsers
import jax
import numpy as np
import pytest
from browser import RIGHT, SPACE, TAB
from certified import make

from dpmf_jax import training
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import training_data
from dpmf_jax.serving import folding, models, page, recommendations
from dpmf_jax.types import Counted, Fit, Sum

CERTIFICATE = make()[1]
HOSTILE = (
  '</script><img src=x onerror="window.hacked = 1">',
  '<!--<script>window.hacked = 1</script>',
  '"><svg onload="window.hacked = 1">&lt;b&gt;',
  '\u202etxt.exe\u2028\ud800 $title ${data}',
)


def model_of(items: int, rank: int, *, stars: bool, titles=()) -> models.Model:
  """Of items that differ in size by orders of magnitude."""
  rng = np.random.default_rng(items)
  item = rng.normal(size=(items, rank)) * rng.exponential(size=(items, 1))
  item[:, 0] = np.abs(item[:, 0])
  prior = np.linspace(1e-3, 0, rank)
  fit = Sum(prior, rng.random(items), Counted(1.0, 0.25, 0.1875))
  if stars:
    fit = Fit(prior, np.r_[np.inf, rng.exponential(size=rank - 1) + 0.1])
  ids = [f'm{i}' for i in range(items)]
  return models.Model(
    user_factors=None,
    item_factors=item.astype(np.float32),
    offset=3.0 if stars else 0.0,
    scale=(1.0, 5.0),
    user_ids=np.array([]),
    item_ids=np.array(ids),
    titles=dict(zip(ids, titles, strict=False)),
    seen=None,
    covered=True,
    fit=fit,
    number=rng.exponential(size=items) if stars else None,
  )


class Elements(html.parser.HTMLParser):
  """Tags with their attributes, and the text of scripts and styles."""

  def __init__(self, content: str):
    super().__init__()
    self.tags, self.texts, self.inside = [], {'script': '', 'style': ''}, None
    self.feed(content)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    self.inside = None if attrs else tag

  def handle_endtag(self, tag):
    self.inside = None

  def handle_data(self, data):
    if self.inside in self.texts:
      self.texts[self.inside] += data


def data_of(content: str) -> dict:
  return json.loads(re.search(r'id="model">(.*?)</script>', content)[1])


@pytest.mark.parametrize('stars', [False, True])
def test_the_policy_allows_its_own_script_and_style_alone(stars):
  found = Elements(page.page_of(model_of(5, 3, stars=stars), CERTIFICATE))
  (policy,) = (a['content'] for _, a in found.tags if 'http-equiv' in a)
  rules = dict(rule.split(maxsplit=1) for rule in policy.split(';'))
  digest = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest())
  for name in ('script', 'style'):
    wanted = f"'sha256-{digest(found.texts[name]).decode()}'"
    assert rules.pop(f'{name}-src') == wanted
    count = {'script': 2, 'style': 1}[name]  # numbers are a script, too
    assert sum(tag == name for tag, _ in found.tags) == count
  assert set(rules.values()) == {"'none'"}
  assert set(rules) == {'default-src', 'base-uri', 'form-action'}
  for tag, attributes in found.tags:
    assert not {'src', 'href', 'style', 'onclick', 'onload'} & set(attributes)
    assert tag not in ('link', 'iframe', 'img', 'form', 'a', 'base')


def test_names_are_text_whatever_is_in_them():
  model = model_of(6, 2, stars=False, titles=HOSTILE)
  content = page.page_of(model, CERTIFICATE)
  assert data_of(content)['names'] == [*HOSTILE, 'm4', 'm5']
  plain = page.page_of(model._replace(titles={}), CERTIFICATE)
  assert len(Elements(content).tags) == len(Elements(plain).tags)
  content.encode()  # lone surrogates are written as such nowhere


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({}, ('PROVED', 'epsilon = 1.5, delta = 1e-6', 'Any one rating')),
    ({'seed': 7}, ('FOR EXPERIMENTS ONLY', 'PROVED ONLY WITH A SECRET KEY')),
    ({'variant': 'paper'}, ('CLAIMED BY THE PAPER', 'Nothing is guaranteed')),
    ({'name': 'nonprivate', 'variant': 'none'}, ('NOT PRIVATE', 'Nothing.')),
  ],
)
def test_the_headline_of_the_certificate_is_on_it(settings, words):
  certificate = make(**settings)[1]
  content = page.page_of(model_of(4, 2, stars=True), certificate)
  header = re.search('<header>(.*)</header>', content, re.DOTALL)[1]
  assert 'What you click never leaves this page.' in header
  for part in words:
    assert part in header


def test_four_thousand_items_are_less_than_one_and_a_half_megabytes():
  titles = [
    f'{i} of those whose titles are long (1999)' * 2 for i in range(4000)
  ]
  for stars in (False, True):
    model = model_of(4000, 33, stars=stars, titles=titles)
    assert len(page.page_of(model, CERTIFICATE).encode()) < 1.5e6


def test_no_number_of_a_user_is_in_it():
  model = model_of(5, 3, stars=True)
  rows = np.ones((2, 3), np.float32)
  seen = models.seen_matrix([0, 1], [1, 2], (2, 5))
  curators = model._replace(
    user_factors=rows, user_ids=np.array(['ann', 'bob']), seen=seen
  )
  content = page.page_of(curators, CERTIFICATE)
  assert content == page.page_of(model, CERTIFICATE)


def test_what_cannot_be_fitted_at_home_is_refused(tmp_path):
  model = model_of(5, 3, stars=True)
  path = tmp_path / 'page.html'
  with pytest.raises(ValueError, match='its system releases no item factors'):
    page.write_page(model._replace(items_released=False), CERTIFICATE, path)
  with pytest.raises(ValueError, match='how its users are fitted'):
    page.write_page(model._replace(fit=None), CERTIFICATE, path)
  with pytest.raises(ValueError, match='k=0 must be at least 1'):
    page.write_page(model, CERTIFICATE, path, k=0)
  assert not path.exists()


@pytest.mark.parametrize(
  ('scale', 'stars'),
  [
    ((1, 5), [1, 2, 3, 4, 5]),
    ((0.5, 5), [1, 2, 3, 4, 5]),
    ((0, 1), [0, 1]),
    ((-10, 10), [-10, -5, 0, 5, 10]),
    ((0.2, 0.6), [0.2, 0.3, 0.4, 0.5, 0.6]),
  ],
)
def test_stars_are_in_the_scale(scale, stars):
  model = model_of(5, 3, stars=True)._replace(scale=scale)
  found = data_of(page.page_of(model, CERTIFICATE))['stars']
  np.testing.assert_allclose(found, stars)


def test_a_model_with_one_order_for_all_says_so():
  model = model_of(5, 3, stars=False)
  alone = model.item_factors * np.array([[1, 0, 0]], np.float32)
  same = lambda model: data_of(page.page_of(model, CERTIFICATE))['same']
  assert not same(model)
  assert same(model._replace(item_factors=alone))


# In a browser


@pytest.fixture(scope='module')
def browser():
  with browsers.started() as found:
    yield found


@pytest.fixture
def shown(browser, tmp_path):
  """Shows the page of a model."""

  def show(model, certificate=CERTIFICATE, **options):
    path = tmp_path / 'page.html'
    page.write_page(model, certificate, path, **options)
    browser.show(path)
    return browser

  return show


def choose(browser, name: str, rating: int) -> None:
  """Finds an item and clicks, as with a mouse."""
  browser.run(
    """
    const query = document.getElementById('query');
    query.value = arguments[0];
    query.dispatchEvent(new Event('input'));
    for (const row of document.querySelectorAll('#results li')) {
      if (row.querySelector('bdi').textContent === arguments[0]) {
        row.querySelector(`[data-rating="${arguments[1]}"]`).click();
      }
    }
    """,
    name,
    rating,
  )


def listed(browser) -> list[tuple[str, float, list[str]]]:
  """Names, scores and reasons, as they stand in the list."""
  return browser.run(
    """
    const texts = (row, where) =>
      [...row.querySelectorAll(where)].map((each) => each.textContent);
    return [...document.querySelectorAll('#list li')].map((row) => [
      texts(row, 'bdi')[0], Number(row.dataset.score),
      texts(row, 'small bdi')]);
    """
  )


def trained(kind: str):
  """A private model of synthetic ratings, and its certificate."""
  ratings = synthetic(
    num_users=300, num_items=120, num_ratings=9000, rank=3, seed=2
  )
  if kind == 'ranking':  # of two groups, who choose items of their own
    own = (ratings.user + ratings.item) % 2 == 0
    ratings = ratings.take(own)
  name, settings = {
    'ranking': ('ranking_mf', {'unit': 'user', 'rank': 3, 'rounds': 2}),
    'stars': ('dpals', {'rank': 2, 'steps': 2}),
  }[kind]
  system, certificate = make(name, epsilon=5.0, **settings)
  data = training_data(ratings)
  state = training.fit(system, jax.random.key(0), data)
  return models.model_from_release(
    system.release(state, data), ratings
  ), certificate


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['ranking', 'stars', 'drawn'])
def test_scores_and_reasons_are_those_of_python(kind, shown):
  model, certificate = model_of(150, 33, stars=True), CERTIFICATE
  if kind != 'drawn':
    model, certificate = trained(kind)
  assert not recommendations.one_order(model.item_factors)
  total = len(model.item_ids)
  browser = shown(model, certificate, k=total)
  own = {str(model.item_ids[i]): r for i, r in ((7, 5), (2, 1), (30, 4))}
  if kind == 'ranking':
    own = dict.fromkeys(own, 5)  # a click
  for item, rating in own.items():
    choose(browser, item, rating)
  found = listed(browser)
  mine = folding.fold_in(model, {'me': own})
  wanted = recommendations.recommend(mine, 'me', total, why=3)
  assert {name for name, *_ in found} == {str(row.item) for row in wanted}
  assert not set(own) & {name for name, *_ in found}
  size = 4 if kind != 'ranking' else max(abs(row.score) for row in wanted)
  by_name = {str(row.item): row for row in wanted}
  scores = [score for _, score, _ in found]
  assert scores == sorted(scores, reverse=True)
  for name, score, reasons in found:
    row = by_name[name]
    assert score == pytest.approx(row.score, abs=1e-3 * size)
    parts = {str(reason.item): reason.part for reason in row.why}
    # Where two add the same, either may be first.
    ordered = [parts.get(reason, 0) for reason in reasons]
    best = sorted([*parts.values(), 0, 0], reverse=True)[:2]
    ordered += [0] * (2 - len(ordered))
    assert ordered == pytest.approx(best, abs=1e-3 * size)


def announced(browser) -> str:
  return browser.run("return document.getElementById('said').textContent")


@pytest.mark.slow
def test_a_ranking_by_keyboard_alone(shown):
  names = [f'Film {i}' for i in range(20)]
  browser = shown(model_of(20, 4, stars=False, titles=names), k=5)
  assert announced(browser).startswith('Nothing chosen yet')
  browser.press(TAB)
  assert browser.focused() == (
    'searchbox', 'Search 20 titles, and click what you like',
  )  # fmt: skip
  browser.press('film 13' + TAB)
  assert browser.focused() == ('button', 'Like Film 13')
  pressed = 'return document.activeElement.ariaPressed'
  assert browser.run(pressed) == 'false'
  browser.press(SPACE)
  assert browser.focused() == ('button', 'Like Film 13')
  assert browser.run(pressed) == 'true'
  found = [name for name, *_ in listed(browser)]
  assert len(found) == 5
  assert 'Film 13' not in found
  assert announced(browser) == f'From your choices: 1. First is {found[0]}.'
  assert listed(browser)[0][2] == ['Film 13']
  # What is liked in the list goes, and the next one is in focus.
  browser.press(TAB)
  assert browser.focused() == ('button', 'Forget Film 13')
  browser.press(TAB)
  assert browser.focused() == ('button', 'Forget all')
  browser.press(TAB)
  assert browser.focused() == ('button', f'Like {found[0]}')
  browser.press(SPACE)
  left = [name for name, *_ in listed(browser)]
  assert found[0] not in left
  assert browser.focused() == ('button', f'Like {left[0]}')
  browser.run("document.getElementById('clear').focus()")
  browser.press(SPACE)
  assert announced(browser).startswith('Nothing chosen yet')
  assert browser.focused()[0] == 'searchbox'


@pytest.mark.slow
def test_stars_by_keyboard_alone(shown):
  names = [f'Film {i}' for i in range(20)]
  browser = shown(model_of(20, 4, stars=True, titles=names), k=5)
  browser.press(TAB + 'film 7' + TAB)
  assert browser.focused() == ('button', '1 of 5')
  group = "return document.activeElement.closest('[role=group]').ariaLabel"
  assert browser.run(group).startswith('Stars for Film 7')
  browser.press(RIGHT * 3 + SPACE)
  assert browser.focused() == ('button', '4 of 5')
  assert browser.run('return document.activeElement.ariaPressed') == 'true'
  assert announced(browser).startswith('From your choices: 1.')
  assert 'Film 7' not in [name for name, *_ in listed(browser)]
  browser.press(SPACE)  # once more takes it away
  assert announced(browser).startswith('Nothing chosen yet')


@pytest.mark.slow
def test_hostile_names_do_nothing(shown):
  browser = shown(model_of(6, 3, stars=False, titles=HOSTILE))
  for name in HOSTILE[:3]:
    choose(browser, name, 5)
  found = browser.run(
    """
    return ['#chosen', '#list'].map((list) =>
      [...document.querySelectorAll(`${list} .name`)]
        .map((each) => each.firstChild.textContent.toWellFormed()));
    """
  )
  assert found[0] == [*HOSTILE[:3]]
  assert HOSTILE[3].replace('\ud800', '\ufffd') in found[1]
  assert browser.run(
    """
    const script = document.createElement('script');
    script.textContent = 'window.hacked = 2';
    document.body.append(script);
    return [window.hacked ?? 'safe',
      document.querySelectorAll('img, svg, main script, main b').length];
    """
  ) == ['safe', 0]


@pytest.mark.slow
def test_nothing_leaves_the_page(shown):
  reached = []

  class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      reached.append(self.path)
      self.send_response(200)
      self.send_header('Access-Control-Allow-Origin', '*')
      self.end_headers()

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
      pass

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Server)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  asked = """
    const [address] = arguments;
    const asked = await fetch(`${address}/fetch`).then(() => 'let', () => 'no');
    const image = await new Promise((done) => {
      const image = new Image();
      [image.onload, image.onerror] = [() => done('let'), () => done('no')];
      image.src = `${address}/image`;
    });
    navigator.sendBeacon(`${address}/beacon`);
    return [asked, image, performance.getEntriesByType('resource')
      .filter((each) => !each.name.startsWith(address)).length];
  """
  address = f'http://127.0.0.1:{server.server_port}'
  try:
    browser = shown(model_of(20, 4, stars=False))
    choose(browser, 'm3', 5)
    assert browser.run("return performance.getEntriesByType('resource')") == []
    assert browser.run(asked, address) == ['no', 'no', 0]
    assert reached == []
  finally:
    server.shutdown()
    server.server_close()
