"""Continuous queries created, altered, dropped and looked up."""
