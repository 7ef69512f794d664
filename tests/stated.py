"""Guarantees about plain events, for tests of what follows from them."""

from dpmf_jax.types import Guarantee

# What ledgers of tests put down of a run.
FACTS = {
  'delta': 1e-6,
  'unit': 'rating',
  'relation': 'replace',
  'dataset': 'made-up',
}


def guarantee(event, status='proved', **facts):
  return Guarantee(
    status=status,
    event=event,
    **{
      'unit': 'rating',
      'relation': 'replace',
      'adversary': 'anyone',
      'released': ('answers',),
      'secret': ('ratings',),
      'assumptions': (),
      'mechanism': 'noise',
      **facts,
    },
  )
