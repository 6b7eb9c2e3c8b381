"""Compaction, retention and their background thread."""
