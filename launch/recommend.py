"""`dpmf recommend` in a checkout."""

from dpmf_jax.commands import cli, recommend

if __name__ == '__main__':
  cli.run(recommend.main)
