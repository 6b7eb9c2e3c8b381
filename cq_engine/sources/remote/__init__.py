"""Tables that stay at their sources: read where they are, and joined by continuous queries without a copy (SWEEP)."""
