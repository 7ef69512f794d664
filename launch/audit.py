"""`dpmf audit` in a checkout."""

from dpmf_jax.commands import audit, cli

if __name__ == '__main__':
  cli.run(audit.main)
