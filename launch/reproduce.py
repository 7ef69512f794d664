"""The figures and tables of the papers; it is not installed with `dpmf`.

It belongs to a checkout: rows name its commit, and the attacks beside the
claims are in `benchmarks`, which the library does not import.
"""

from benchmarks.reproduce import command
from dpmf_jax.commands import cli

if __name__ == '__main__':
  cli.run(command.main)
