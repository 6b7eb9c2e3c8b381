"""USING LOG over databases: logs that triggers write at the source, which we install, check, read and remove."""
