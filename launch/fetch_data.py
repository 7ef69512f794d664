"""`dpmf fetch_data` in a checkout."""

from dpmf_jax.commands import cli, fetch_data

if __name__ == '__main__':
  cli.run(fetch_data.main)
