"""Spark as this engine uses it: SQL, settings, rows in Arrow."""
