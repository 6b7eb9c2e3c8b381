"""Queries that differ in constants and are refreshed as one."""
