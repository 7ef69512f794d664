"""`dpmf account` in a checkout."""

from dpmf_jax.commands import account, cli

if __name__ == '__main__':
  cli.run(account.main)
