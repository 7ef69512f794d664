"""A deployment's parties, without a network.

Each party is a function from a message to an answer, with its state in a
folder of its own (`parties`); what they say to one another is a `Protocol` of
each system (`protocols`). `asking` asks nodes through whatever carries bytes.
"""
