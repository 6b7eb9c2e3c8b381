"""Directories of files as sources: files that arrive, and files that are a table."""
