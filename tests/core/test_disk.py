"""What the system refuses is an error with a way out, whoever tells of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cq_engine.catalog import tables
from cq_engine.catalog.storage.local import LocalStore
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
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalStore, "make_durable", full)
    with pytest.raises(DiskError, match=r"cannot write t/x\.parquet: No space left on device") as caught:
        tables.write_parquet(pa.table({"k": [1]}), "t/x.parquet", LocalStore(str(tmp_path)))
    assert "make room" in caught.value.hint


def test_what_others_have_written_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors close their files and leave it to the system when they reach the disk."""
    synced: list[str] = []
    opened: dict[int, str] = {}
    open_file = os.open

    def note_open(path: str | Path, flags: int) -> int:
        descriptor = open_file(path, flags)
        opened[descriptor] = str(path)
        return descriptor

    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(opened[descriptor]))
    part = tmp_path / "tables/t/copy-1/part-0.parquet"
    part.parent.mkdir(parents=True)
    pq.write_table(pa.table({"k": [1]}), part)
    assert [file.rows for file in tables.data_files("tables/t/copy-1", LocalStore(str(tmp_path)), ["k"])] == [
        1
    ]
    assert synced == [
        str(part),
        *(str(tmp_path / each) for each in ("tables/t/copy-1", "tables/t", "tables", "")),
    ]
