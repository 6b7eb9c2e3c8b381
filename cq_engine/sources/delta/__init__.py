"""Tables of Delta Lake as sources."""
