"""Queues of the engine's own: what consumers are given of the delta logs, and what has become of it."""
