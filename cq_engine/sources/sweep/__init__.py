"""Maintaining a join over sources that answer only with their current state: SWEEP, Nested SWEEP and a pass per batch."""
