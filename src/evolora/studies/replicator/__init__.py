"""Replicator-mutation search: its mechanism, and whether a population ever wins."""
