"""Ratings on the host: reading, naming, splitting and making them (no JAX)."""
