"""The commands in a checkout: `python -m launch.train` is `dpmf train`."""

from dpmf_jax.commands import __path__ as __path__
