"""The network and everything that runs it."""
