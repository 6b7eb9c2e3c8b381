"""The mesh join: one cyclic scan of a huge table, shared by a window of changes, within a memory budget (Polyzotis et al., ICDE 2007)."""
