"""Which of Spark's physical plans may run again over other rows: those whose every operator is known to keep nothing.

Spark keeps the output of shuffles, broadcasts and subqueries of a plan that runs again, and they would be those of
other rows. What is not on the list may do the like, so that an operator of a later Spark is planned anew at first.
"""

from __future__ import annotations

import re

__all__ = ["KEEPING_NOTHING", "keeps_nothing"]

KEEPING_NOTHING = frozenset(
    {
        "CartesianProduct",
        "Coalesce",
        "CollectLimit",
        "ColumnarToRow",
        "Expand",
        "FileScan",
        "Filter",
        "Generate",
        "GlobalLimit",
        "HashAggregate",
        "LocalLimit",
        "LocalTableScan",
        "ObjectHashAggregate",
        "Project",
        "Scan OneRowRelation",
        "ShuffledHashJoin",
        "Sort",
        "SortAggregate",
        "SortMergeJoin",
        "Union",
        "Window",
        "WindowGroupLimit",
    }
)
"""Operators that compute their rows from their inputs' at every run. Leaves among them read files, or hold constants."""
_OPERATOR = re.compile(r"[ :+-]*(?:\* ?\(\d+\) )?(Scan \w+|\w+)")


def keeps_nothing(plan: str) -> bool:
    """Does a physical plan, as EXPLAIN shows it, give what its leaves have at every run?

    >>> keeps_nothing("== Physical Plan ==\\n*(1) Project [a#1]\\n+- *(1) Filter (a#1 > 5)\\n   +- FileScan parquet [a#1]")
    True
    >>> keeps_nothing("== Physical Plan ==\\nProject [a#1]\\n+- Exchange hashpartitioning(a#1)\\n   +- FileScan parquet [a#1]")
    False
    >>> keeps_nothing("== Physical Plan ==\\nProject [a#1]\\n+- NewOperator\\n   +- FileScan parquet [a#1]")
    False
    """
    lines = plan.strip().splitlines()[1:]
    names = [_OPERATOR.match(line) for line in lines]
    return bool(names) and all(each is not None and each[1] in KEEPING_NOTHING for each in names)
