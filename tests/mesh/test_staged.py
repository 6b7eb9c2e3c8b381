"""Rows that match and wait for who has met them: in memory, in files, and gone with the last who wants them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cq_engine.core.columns import Column
from cq_engine.mesh import staged
from cq_engine.mesh.staged import Stage, Staged, gather, spill
from cq_engine.mesh.table_mesh import TableMesh
from cq_engine.mesh.window import Image, Page
from tests.mesh.memory import COLUMNS, Memory, make


def test_a_read_that_fails_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that it had found and put into some."""
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    memory = Memory({Page("f", g): make(random.Random(g), 300) for g in range(3)})
    image, mesh, right, spilled = Image(memory.pages), TableMesh(memory, 4_000), memory.read, []

    def read(pages: Sequence[Page], columns: Sequence[Column], rows: int) -> Iterator[pa.Table]:
        yield from right(pages, columns, rows)
        spilled.append(len(list(tmp_path.iterdir())))
        raise OSError("gone")

    memory.read = read  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        mesh.rows(image, None, {"k": pa.array(range(1_000))}, COLUMNS)
    assert max(spilled) > 0
    assert list(tmp_path.iterdir()) == []
    assert mesh.nbytes == 0


def test_a_spill_that_fails_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a part of one nor those of rows that nobody has met then."""
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    memory = Memory({Page("f", g): make(random.Random(g), 60) for g in range(40)})
    image, right, written = Image(memory.pages), pa.ipc.new_file, []

    def new_file(*given: Any) -> Any:
        written.append(given)
        if len(written) == fails_at:
            raise OSError("no space left on device")
        return right(*given)

    monkeypatch.setattr(pa.ipc, "new_file", new_file)
    fails_at = 0
    for n in range(1, 12):
        mesh, fails_at = TableMesh(memory, 3_000), len(written) + n
        with pytest.raises(OSError, match="no space left"):
            mesh.rows(image, None, {"k": pa.array(range(1_000))}, COLUMNS)
        assert list(tmp_path.iterdir()) == []
        assert mesh.nbytes == 0


def test_spilled_rows_are_shared_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    tables = [make(random.Random(n), 9) for n in range(3)]
    parts = [Staged(rows) for rows in (tables[0], tables[1], tables[2].drop_columns(["note"]))]
    for part in (*parts, parts[0]):
        part.hold()
    taken = sum(part.nbytes for part in parts)
    assert spill(parts) == taken
    assert spill(parts) == 0
    assert [part.nbytes for part in parts] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == 2, "a file for rows of the same columns"
    assert [part.rows().equals(rows) for part, rows in zip(parts[:2], tables)] == [True, True]
    parts[0].release()
    parts[1].release()
    assert parts[0].rows().equals(tables[0]), "somebody else has met them"
    for part in (parts[0], parts[2]):
        part.release()
    assert list(tmp_path.iterdir()) == []


def test_spilled_rows_are_read_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    tables = [make(random.Random(n), 9) for n in range(12)]
    parts = [Staged(rows).hold() for rows in tables]
    for start in (0, 4):
        spill(parts[start : start + 4])
    opened, right = [], pa.memory_map
    monkeypatch.setattr(pa, "memory_map", lambda path: opened.append(path) or right(path))
    found = gather(parts)
    assert [rows.equals(wanted) for rows, wanted in zip(found, tables)] == [True] * 12
    assert len(opened) == len(set(opened)) == 2


@pytest.mark.parametrize("seed", range(5))
def test_a_stage_knows_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """As the sum over its parts would say, whatever was released, added twice, or put into a file meanwhile."""
    monkeypatch.setattr(staged, "scratch", lambda: tmp_path)
    chance, stage = random.Random(seed), Stage()
    parts: list[Staged] = []
    for _ in range(200):
        match chance.choice(["add", "add", "again", "release", "spill one", "spill"]):
            case "add":
                parts.append(Staged(make(chance, chance.randint(0, 9))).hold())
                stage.add(parts[-1])
            case "again" if parts:
                stage.add(chance.choice(parts))
            case "release" if parts:
                parts.pop(chance.randrange(len(parts))).release()
            case "spill one" if parts:
                spill([chance.choice(parts)])
            case "spill" if chance.random() < 0.2:
                held = stage.nbytes
                assert stage.spill() == held
        assert stage.nbytes == sum(part.nbytes for part in parts)
