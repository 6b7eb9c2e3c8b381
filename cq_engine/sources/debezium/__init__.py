"""Logs of Debezium as sources."""
