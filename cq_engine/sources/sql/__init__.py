"""Databases that are asked in their own SQL: connections, relations, queries and values.

Nothing here knows the warehouse. A `Database` is opened by its declaration, `describe` finds a `Relation` in it, `selection`
says what a capture wants of it, and the functions of `select` make the `Statement`s of the methods of Carnes & Hanson.
"""
