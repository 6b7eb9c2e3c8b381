"""Relational algebra: the shape in which a defining query is analysed and its delta is planned."""
