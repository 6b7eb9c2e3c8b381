"""One refresh: from an interval of commits to rows of the delta log."""
