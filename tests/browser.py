"""A real browser, by its own driver: the few WebDriver commands that tests use.

Selenium would bring twelve packages, one of them newer than Flower allows, and
looks for drivers on the network; the protocol is JSON over HTTP.
"""

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request

import pytest

# Headless, as root too, and quiet: a test must not depend on what is online.
_ARGUMENTS = (
  'headless',
  'no-sandbox',
  'disable-background-networking',
  'disable-component-update',
  'disable-dev-shm-usage',
  'disable-gpu',
  'disable-quic',
  'disable-sync',
  'no-first-run',
)
TAB, SPACE, RIGHT = '\ue004', ' ', '\ue014'
_ELEMENT = 'element-6066-11e4-a52e-4f735466cecf'  # of the standard
# The driver is on this machine, whatever the environment says of proxies.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Browser:
  """A session of a browser; commands return when the page has done them."""

  def __init__(self, address: str):
    self._address = address

  def call(self, method: str, path: str, **body):
    """The value of a command of the protocol."""
    content = None if method == 'GET' else json.dumps(body).encode()
    request = urllib.request.Request(
      self._address + path, content, method=method
    )
    with _open(request) as answer:
      return json.load(answer)['value']

  def run(self, script: str, *arguments):
    """What a script in the page returns, or the promise that it returns."""
    return self.call(
      'POST', '/execute/sync', script=script, args=list(arguments)
    )

  def show(self, path) -> None:
    self.call('POST', '/url', url=path.resolve().as_uri())

  def press(self, keys: str) -> None:
    """Presses keys, wherever the focus is."""
    steps = [
      {'type': kind, 'value': key}
      for key in keys
      for kind in ('keyDown', 'keyUp')
    ]
    source = {'type': 'key', 'id': 'keyboard', 'actions': steps}
    self.call('POST', '/actions', actions=[source])

  def focused(self) -> tuple[str, str]:
    """Role and name of what is in focus, as a screen reader has them."""
    element = self.call('GET', '/element/active')[_ELEMENT]
    of = lambda what: self.call('GET', f'/element/{element}/computed{what}')
    return of('role'), of('label')


@contextlib.contextmanager
def started():
  """Yields a browser; skips, saying so, where there is none."""
  binary, driver = map(shutil.which, ('chromium', 'chromedriver'))
  if not (binary and driver):
    pytest.skip('no browser: chromium and chromedriver are not installed')
  with (
    tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    subprocess.Popen(
      [driver, '--port=0'], stdout=subprocess.PIPE, text=True
    ) as process,
  ):
    try:
      assert process.stdout is not None
      lines = (re.search(r'on port (\d+)\.', line) for line in process.stdout)
      port = next(found for found in lines if found)[1]
      address = f'http://127.0.0.1:{port}/session'
      arguments = [*_ARGUMENTS, f'user-data-dir={profile}']
      options = {'binary': binary, 'args': arguments}
      asked = {
        'goog:chromeOptions': options,
        'timeouts': {'script': None, 'pageLoad': 2**31},
      }
      session = Browser(address).call(
        'POST', '', capabilities={'alwaysMatch': asked}
      )['sessionId']
      browser = Browser(f'{address}/{session}')
      yield browser
      browser.call('DELETE', '')
    finally:
      process.terminate()
