"""AVG of decimals from its accumulators: digit by digit what Spark's own AVG gives, for narrow and wide types."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from cq_engine.delta.accumulators import _decimal_share


def _groups(precision: int, scale: int) -> str:
    """Rows (group, value) for VALUES."""
    chosen = random.Random(precision * 100 + scale)
    unit = f"CAST({'1' if scale == 0 else '0.' + '0' * (scale - 1) + '1'} AS DECIMAL({scale + 1},{scale}))"
    rows = []
    for group in range(30):
        for _ in range(chosen.choice((1, 2, 3, 7, 11, 13))):
            number = chosen.choice((1, -1)) * chosen.randrange(10 ** chosen.randint(1, precision))
            rows.append(
                f"({group}, CAST(CAST('{number}' AS DECIMAL(38,0)) * {unit} AS DECIMAL({precision},{scale})))"
            )
    return ", ".join(rows)


@pytest.mark.parametrize(("precision", "scale"), [(10, 2), (14, 4), (18, 2), (19, 4), (20, 0), (27, 12)])
def test_share_is_sparks_average(spark: SparkSession, precision: int, scale: int) -> None:
    share = _decimal_share(precision, scale, f"decimal({precision + 4},{scale + 4})")
    assert share is not None
    value = share.format("n", "t")
    rows = spark.sql(
        f"SELECT a, {value} AS b FROM (SELECT avg(v) AS a, CAST(sum(v) AS DECIMAL(38,{scale})) AS t, count(v) AS n"
        f" FROM VALUES {_groups(precision, scale)} r(g, v) GROUP BY g)"
    ).collect()
    assert [row.a for row in rows] == [row.b for row in rows]


def test_too_wide_is_recomputed() -> None:
    assert _decimal_share(38, 10, "decimal(38,14)") is None
