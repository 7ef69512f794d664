"""`dpmf compare` in a checkout."""

from dpmf_jax.commands import cli, compare

if __name__ == '__main__':
  cli.run(compare.main)
