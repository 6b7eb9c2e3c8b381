"""Look-ups in Parquet files that Spark has written: it stores some types as plain numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cq_engine.core.columns import Column
from cq_engine.core.limits import Limits
from cq_engine.storage.file_look_ups import FileLookUps, restriction
from cq_engine.storage.rows import open_dataset

VALUES = {
    "timestamp": ("TIMESTAMP '1500-01-01'", "TIMESTAMP '2020-03-08 02:30:00'"),
    "timestamp_ntz": ("TIMESTAMP_NTZ '1500-01-01'", "TIMESTAMP_NTZ '2020-03-08 02:30:00'"),
    "date": ("DATE '1582-10-20'", "DATE '2020-03-08'"),
    "time(6)": ("TIME '00:00:00'", "TIME '23:59:59.999999'"),
    "decimal(5,2)": ("0.00", "-123.45"),
    "decimal(38,18)": ("-0.5", "99999999999999999999.999999999999999999"),
    "binary": ("X''", "X'00ff'"),
    "string": ("''", "'ä'"),
    "boolean": ("true", "false"),
    "tinyint": ("-128", "127"),
    "interval year to month": ("INTERVAL '1-2' YEAR TO MONTH", "INTERVAL '-0-1' YEAR TO MONTH"),
    "interval day to second": ("INTERVAL '1 02:03:04.5' DAY TO SECOND", "INTERVAL '-1 00:00:00' DAY TO SECOND"),
}  # fmt: skip


@pytest.mark.parametrize("nulls", [False, True], ids=["no NULL", "NULLs"])
@pytest.mark.parametrize("kind", VALUES)
def test_every_value_of_one_row_group_is_found(
    spark: SparkSession, tmp_path: Path, kind: str, nulls: bool
) -> None:
    """Arrow compares wanted values with the bounds of a row group where these differ: so all are in one."""
    values = (*VALUES[kind], "NULL") if nulls else VALUES[kind]
    rows = ", ".join(f"(CAST({value} AS {kind.upper()}), {n})" for n, value in enumerate(values))
    path = str(tmp_path / "rows")
    spark.sql(f"SELECT k, CAST(n AS INT) AS n FROM VALUES {rows} AS r (k, n)").coalesce(1).write.parquet(path)
    (file,) = Path(path).glob("*.parquet")
    columns = [Column("k", kind), Column("n", "int")]
    every = open_dataset([str(file)], columns).to_table()
    assert every.num_rows == len(values)
    for number in range(len(values)):
        some = every.slice(number)
        wanted = restriction(some, columns[:1])
        found = FileLookUps(Limits()).rows(1, [(str(file), len(values))], columns, wanted, 10)
        assert found is not None
        assert sorted(found.column("n").to_pylist()) == sorted(some.column("n").to_pylist())
