"""Tables of Apache Iceberg as sources."""
