"""Starting Spark: Java, its class archive, the session."""
