"""`dpmf federated.recommender` in a checkout."""

from dpmf_jax.commands import cli
from dpmf_jax.commands.federated import recommender

if __name__ == '__main__':
  cli.run(recommender.main)
