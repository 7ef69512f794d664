"""`dpmf COMMAND --flag=value ...`: everything that can be typed in a shell."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

from dpmf_jax.commands import cli

# In the order in which people need them.
COMMANDS = {
  'fetch_data': 'get a named data set',
  'train': 'train a recommender, with a privacy certificate',
  'recommend': 'lists from a model, for its users or new ones',
  'compare': 'how accurate systems are at each epsilon: an experiment',
  'account': 'how private something is, or would be',
  'audit': 'attack what systems state about privacy',
  'federated.worker': 'a node or the aggregator of a deployment',
  'federated.recommender': 'the recommender of a deployment',
}


def listing() -> str:
  """The commands, a line for each."""
  width = max(map(len, COMMANDS))
  lines = [f'  {name:<{width}}  {what}' for name, what in COMMANDS.items()]
  return '\n'.join(
    (
      'usage: dpmf COMMAND --flag=value ...',
      '',
      *lines,
      '',
      'dpmf COMMAND --help has examples and flags.',
    )
  )


def main() -> NoReturn:
  """Never returns: runs the command that the first argument names."""
  name, *rest = sys.argv[1:] or ['--help']
  if name in cli.HELP:
    print(listing())
    sys.exit(0)
  if name not in COMMANDS:
    cli.fail(f'there is no command {name!r}; there are {", ".join(COMMANDS)}')
  sys.argv = [f'dpmf {name}', *rest]
  # One alone, and none above: each defines its flags when it is imported.
  cli.run(importlib.import_module(f'dpmf_jax.commands.{name}').main)


if __name__ == '__main__':
  main()
