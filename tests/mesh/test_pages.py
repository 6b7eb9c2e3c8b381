"""The pages of a table's files: which a batch needs, and what they hold up meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cq_engine.core.columns import Column
from cq_engine.mesh import pages as module
from cq_engine.mesh.pages import Pages
from cq_engine.storage.row_groups import RowGroups

COLUMNS = (Column("k", "bigint"), Column("note", "string"))
FILES = 8


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Files of four pages of ten rows, whose keys follow each other."""
    made = []
    for n in range(FILES):
        keys = np.arange(40 * n, 40 * n + 40)
        made.append(str(tmp_path / f"{n}.parquet"))
        pq.write_table(pa.table({"k": keys, "note": keys.astype(str)}), made[-1], row_group_size=10)
    return made


def test_keys_are_sorted_once_and_nobody_waits_for_it(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(None, 1_024)
    image = pages.image(files, COLUMNS)
    counted = []

    def counting(restrict: Mapping[str, pa.Array]) -> Any:
        assert not pages._guard.locked()
        counted.append(len(restrict))
        return right(restrict)

    right = module.in_order
    monkeypatch.setattr(module, "in_order", counting)
    needed = pages.needed(image, COLUMNS, {"k": pa.array([5, 41, 319])}, files)
    assert [image.pages[n] for n in np.flatnonzero(needed)] == [(files[0], 0), (files[1], 0), (files[-1], 3)]
    assert counted == [1]


def test_footers_are_read_without_a_lock(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that takes long to open does not hold up who reads others."""
    pages = Pages(None, 1_024)
    slow, free, right = threading.Event(), threading.Event(), RowGroups.metadata

    def metadata(self: RowGroups, fragment: Any) -> Any:
        if fragment.path == files[0]:
            slow.set()
            assert free.wait(20)
        return right(self, fragment)

    monkeypatch.setattr(RowGroups, "metadata", metadata)
    first = threading.Thread(target=pages.image, args=(files[:1], COLUMNS))
    first.start()
    try:
        assert slow.wait(20)
        assert len(pages.image(files[1:], COLUMNS)) == 4 * (FILES - 1)
    finally:
        free.set()
        first.join()
    assert pages.image(files[:1], COLUMNS) is pages.image(files[:1], COLUMNS)
