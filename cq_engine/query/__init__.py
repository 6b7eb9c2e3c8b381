"""Plain queries and their results."""
