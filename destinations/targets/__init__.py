"""Targets outside of the warehouse that have the cursor themselves: Delta tables and databases."""
