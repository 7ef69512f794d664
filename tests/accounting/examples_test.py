"""Every function for reviewers has an example, and it is right."""

import doctest
import inspect
import types

import pytest

from dpmf_jax import accounting
from dpmf_jax.accounting import (
  accountant,
  calibration,
  composition,
  dp_events,
  events,
  personalized,
  rdp,
)

MODULES = (
  accountant, calibration, composition, dp_events, events, personalized, rdp,
)  # fmt: skip
PUBLIC = {id(value) for value in vars(accounting).values()}
FUNCTIONS = {
  f'{module.__name__}.{name}': function
  for module in MODULES
  for name, function in vars(module).items()
  if isinstance(function, types.FunctionType)
  and (id(function) in PUBLIC or module in (personalized, rdp))
  and function.__module__ == module.__name__
  and not name.startswith('_')
}


@pytest.mark.parametrize('name', FUNCTIONS)
def test_example(name):
  function = FUNCTIONS[name]
  text = inspect.getdoc(function) or ''
  assert '>>>' in text, f'{name} has no example'
  known = {**vars(accounting), **function.__globals__}
  runner = doctest.DocTestRunner(verbose=False)
  test = doctest.DocTestParser().get_doctest(text, known, name, None, None)
  said = []
  runner.run(test, out=said.append)
  assert not runner.failures, ''.join(said)
