"""When queries run."""
