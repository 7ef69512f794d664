"""Flags of each command -> a call of the library -> files.

A module defines the flags of one command when it is imported, so that only one
of them can be imported in a process.
"""
