"""A system and its certificate, for tests of what is said of them."""

from dpmf_jax import certificates
from dpmf_jax.plans import SPECS
from dpmf_jax.systems import build

THREEFRY = 'threefry2x32, 64-bit key'
SECRET = certificates.randomness(certificates.ENTROPY, THREEFRY)
SEEDED = certificates.randomness(certificates.SEED, THREEFRY)


def make(
  name='gaussian_mf', variant='sound', seed=None, randomness=None, **settings
):
  entry = SPECS[name]
  common = {'scale': (1.0, 5.0)}
  if name != 'nonprivate':
    common |= {'delta': 1e-6, 'epsilon': 1.5}
  if name == 'gaussian_mf':
    common |= {'steps': 10}
  config = entry.config(**{**entry.variants[variant], **common, **settings})
  system = build(name, config)
  return system, certificates.certificate(
    system.guarantee,
    system=name,
    config=config,
    delta=getattr(config, 'delta', None),
    randomness=randomness or (SECRET if seed is None else SEEDED),
  )
