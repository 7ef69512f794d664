"""`dpmf train` in a checkout."""

from dpmf_jax.commands import cli, train

if __name__ == '__main__':
  cli.run(train.main)
