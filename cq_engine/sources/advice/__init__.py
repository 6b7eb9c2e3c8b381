"""ADVISE CAPTURE: by which methods a table of a source can be captured, what each costs there, and which one is recommended."""
