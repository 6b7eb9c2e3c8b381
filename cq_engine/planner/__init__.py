"""From a defining query to a verdict, and from an interval of commits to a delta plan."""
