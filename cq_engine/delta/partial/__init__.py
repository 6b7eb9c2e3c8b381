"""Partial deltas: changes that do not say everything, and views that are maintained from them without the base data.

After Jörg & Dessloch, *View Maintenance using Partial Deltas* (BTW 2011). `model` has the kinds of change and the two
ways to write a delta, `dimension` says which queries can be maintained (Definition 2), `rules` has the delta rules for
projection, selection and join (§5.4 to §5.6).
"""
