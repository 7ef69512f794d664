"""Thin scripts for a checkout: `python -m launch.train` is `dpmf train`."""
