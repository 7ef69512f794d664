"""Runs: `train` from ratings to a `Run`, and the folder that one is kept in."""
