"""Statements of a delta plan, evaluated in Arrow on the driver, where that gives what Spark gives."""
