"""From the delta log to destinations."""
