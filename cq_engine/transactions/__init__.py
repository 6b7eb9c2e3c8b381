"""Transactions, DML and streams of changes."""
