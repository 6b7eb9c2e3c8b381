"""Stored scripts: DML over the deltas of one commit, as one transaction of the engine."""
