"""The recommender as a ServerApp."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dpmf_jax.commands.federated import recommender
from dpmf_jax.commands.federated.flower_exchange import flower_exchange

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
  """Runs all rounds of the plan that the run config names."""
  config = context.run_config
  seed = int(config['seed'])
  recommender.run(
    str(config['plan']),
    str(config['state']),
    lambda plan, journal: flower_exchange(grid, journal),
    seed=None if seed < 0 else seed,
    transcript=bool(config['transcript']),
  )
