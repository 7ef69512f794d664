"""Guarantees about plain events, for tests of what follows from them."""

from dpmf_jax.types import Guarantee


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
