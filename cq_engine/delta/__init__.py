"""The delta rules: from a defining query's algebra to the algebra of its delta over an interval of commits.

Two functions carry everything, one rule per operator each:

* `delta(node)`: signed rows, the node's columns with `_v` (commit version) and `_w` (+1 or −1). For every version
  the weights of a row add up to its change in the node's result at that commit.
* `history(node)`: row versions, the node's columns with `_from` <= v < `_to`, for all v from the interval's start on.

In a compressed refresh the changes of each table are netted over the interval first and carry its last version, so
that the same rules serve both modes.
"""
