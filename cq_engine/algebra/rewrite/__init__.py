"""Plans rewritten into plans."""
