"""Times as Spark writes them where nobody says otherwise: in a session of the user's own."""

from __future__ import annotations

import datetime as dt
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cq_engine.catalog.delta_files import complete
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.catalog.tables import batches
from cq_engine.core.columns import Column
from cq_engine.storage.rows import open_dataset

UTC = dt.timezone.utc


def _write(path: Path, day: dt.date) -> None:
    """One second after midnight of the day, as INT96: Arrow writes those around 2024 only, so the day is put there."""

    def encoded(of: dt.date) -> bytes:
        return struct.pack("<qi", 10**9, of.toordinal() + 1_721_425)

    known = dt.datetime(2024, 1, 1, 0, 0, 1, tzinfo=UTC)
    pq.write_table(
        pa.table({"k": pa.array([known], pa.timestamp("us", "UTC"))}), path, compression="none",
        use_deprecated_int96_timestamps=True, use_dictionary=False, write_statistics=False,
    )  # fmt: skip
    path.write_bytes(path.read_bytes().replace(encoded(known.date()), encoded(day)))


@pytest.mark.parametrize("day", [dt.date(1, 1, 1), dt.date(2024, 1, 1), dt.date(9999, 12, 31)])
def test_every_time_is_read(tmp_path: Path, day: dt.date) -> None:
    _write(tmp_path / "a.parquet", day)
    wanted = [dt.datetime(day.year, day.month, day.day, 0, 0, 1, tzinfo=UTC)]
    rows = open_dataset([str(tmp_path / "a.parquet")], [Column("k", "timestamp")]).to_table()
    assert rows.column("k").to_pylist() == wanted
    read = [complete(each, rows.schema, {}) for each in batches(LocalStore(str(tmp_path)), "a.parquet", 10)]
    assert pa.Table.from_batches(read).column("k").to_pylist() == wanted
