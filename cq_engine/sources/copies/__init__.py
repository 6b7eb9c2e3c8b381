"""Copies of captured tables that are kept at their sources."""
