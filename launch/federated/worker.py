"""`dpmf federated.worker` in a checkout."""

from dpmf_jax.commands import cli
from dpmf_jax.commands.federated import worker

if __name__ == '__main__':
  cli.run(worker.main)
