"""What the system refuses is an error with a way out, whoever tells of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from cq_engine.catalog import tables
from cq_engine.core.disk import disk_error, system_reason
from cq_engine.core.errors import DiskError


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), errno.ENOSPC),
        (PermissionError(errno.EACCES, "Permission denied", "/w/tables/t/1.parquet"), errno.EACCES),
        (OSError("[Errno 5] Error reading bytes. Detail: [errno 5] Input/output error"), errno.EIO),
        (RuntimeError("java.io.IOException: No space left on device"), errno.ENOSPC),
        (RuntimeError("database or disk is full"), errno.ENOSPC),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), None),
        (ValueError("Parquet magic bytes not found in footer"), None),
    ],
)
def test_reasons(error: Exception, number: int | None) -> None:
    assert system_reason(error) == number
    made = disk_error("write x", error, "/w")
    assert isinstance(made, DiskError) == (number is not None)
    if number is not None:
        assert made.message == f"cannot write x: {os.strerror(number)}"
        assert made.hint


def test_paths_are_relative() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/w/tables/t/1.parquet")
    assert disk_error("read t", error, "/w").detail == "Permission denied: tables/t/1.parquet"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tables, "make_durable", full)
    with pytest.raises(DiskError, match=r"cannot write t/x\.parquet: No space left on device") as caught:
        tables.write_parquet(pa.table({"k": [1]}), str(tmp_path / "t/x.parquet"), str(tmp_path))
    assert "make room" in caught.value.hint
