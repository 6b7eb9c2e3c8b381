"""Versioned tables read: files, the log after the snapshot, look-ups by key."""
