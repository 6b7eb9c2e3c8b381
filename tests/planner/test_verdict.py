"""What CREATE says of each block: which operator, by which keys, how it is maintained."""

from __future__ import annotations

import pytest

from tests.oracle.generate import History as Recording
from tests.oracle.generate import TableSpec
from tests.oracle.plans import Plans
from tests.oracle.recorded import record

O = TableSpec("o", (("id", "INT"), ("cust", "INT"), ("amt", "DECIMAL(10,2)"), ("f", "DOUBLE")), ("id",))  # noqa: E741
C = TableSpec("c", (("cid", "INT"), ("city", "STRING")), ("cid",))

BLOCKS = {
    "SELECT id FROM o WHERE amt > 1": ("INCREMENTAL", ["rows of o: INCREMENTAL, by the rows that change"]),
    "SELECT id, city FROM o JOIN c ON cust = cid": (
        "INCREMENTAL",
        ["join on cust = cid: INCREMENTAL, by the rows that change and those that join them"],
    ),
    "SELECT cust, sum(amt) AS s FROM o GROUP BY cust": (
        "INCREMENTAL", ["GROUP BY cust (sum): INCREMENTAL, sums and counts are kept per group"],
    ),
    "SELECT cust AS who, sum(f) AS s, count(*) AS n FROM o GROUP BY cust": (
        "INCREMENTAL",
        ["GROUP BY cust (sum, count): INCREMENTAL, kept per group; its rows are read again where an extremum, or a FLOAT"],
    ),
    "SELECT count(*) AS n FROM o": (
        "INCREMENTAL", ["aggregate without GROUP BY (count): INCREMENTAL, sums and counts are kept for the one row"],
    ),
    "SELECT city, max(amt) AS m FROM o JOIN c ON cust = cid GROUP BY city": (
        "INCREMENTAL",
        [
            "join on cust = cid: INCREMENTAL, by the rows that change and those that join them",
            "GROUP BY city (max): INCREMENTAL, kept per group; its rows are read again where an extremum",
        ],
    ),
    "SELECT id, city FROM o LEFT JOIN c ON cust = cid": (
        "INCREMENTAL",
        ["LEFT JOIN on cust = cid: INCREMENTAL, by the rows that change, and those that a changed row can match"],
    ),
    "SELECT id FROM o WHERE NOT EXISTS (SELECT 1 FROM c WHERE cid = cust)": (
        "INCREMENTAL",
        ["rows without a match on cid = cust: INCREMENTAL, by the rows that change, and those that a changed row can match"],
    ),
    "SELECT id, city FROM o LEFT JOIN c ON cust < cid": (
        "INCREMENTAL", ["no equality says which rows a changed row can match"],
    ),
    "SELECT id, row_number() OVER (PARTITION BY cust ORDER BY amt, id) AS n FROM o": (
        "AFFECTED KEYS", ["window functions (row_number) per cust: AFFECTED KEYS, computed anew per partition"],
    ),
    "SELECT id, sum(amt) OVER (ORDER BY id) AS s FROM o": (
        "AFFECTED KEYS",
        ["window functions (sum) without PARTITION BY: AFFECTED KEYS, all rows are one partition, computed anew"],
    ),
    "SELECT id, amt FROM o ORDER BY amt DESC, id LIMIT 3": ("AFFECTED KEYS", ["the first 3 rows by amt DESC, id"]),
    "SELECT DISTINCT cust FROM o": ("INCREMENTAL", ["DISTINCT: INCREMENTAL, the number of equal rows is kept"]),
    "SELECT cust FROM o EXCEPT SELECT cid FROM c": (
        "INCREMENTAL", ["EXCEPT: INCREMENTAL, the number of equal rows is kept"],
    ),
    "WITH RECURSIVE r(n) AS (SELECT id FROM o UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r": (
        "FULL", ["the whole query: FULL, "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("query", BLOCKS)
def test_blocks(query: str) -> None:
    compiled = Plans(record(Recording((O, C), (), (), (query,), 0))).compile(0)
    verdict, lines = BLOCKS[query]
    shown = "\n".join(compiled.reasons)
    assert compiled.verdict == verdict, shown
    for line in lines:
        assert line in shown
