"""The parties of a deployment, each a process of its own."""
