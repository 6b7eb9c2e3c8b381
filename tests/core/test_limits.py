"""Every bound has a reason, and is read."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import cq_engine
from cq_engine.core import limits, memory
from cq_engine.core.limits import GROWING, HELD, Limits

connect = import_module("cq_engine.api.connect")

ROOT = Path(limits.__file__).parents[1]


def test_every_bound_has_a_reason() -> None:
    (made,) = (n for n in ast.parse(Path(limits.__file__).read_text()).body if isinstance(n, ast.ClassDef))
    reasons = {
        field.target.id: text.value.value
        for field, text in zip(made.body, made.body[1:])
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    assert set(reasons) == {field.name for field in fields(Limits)}


def test_every_bound_is_read_somewhere() -> None:
    text = "\n".join(p.read_text(encoding="utf-8") for p in modules() if p.name != "limits.py")
    assert [field.name for field in fields(Limits) if f"limits.{field.name}" not in text] == []


def modules() -> list[Path]:
    folders = [ROOT, *(path for path in ROOT.iterdir() if path.is_symlink())]
    return [path for folder in folders for path in folder.rglob("*.py")]


def test_a_batch_holds_something() -> None:
    with pytest.raises(ValueError, match="at least one delta"):
        Limits(batch_deltas=0)


SHARES = [(64, 3), (14, 2), (7, 1), (3.5, 0.5), (1, 1 / 7), (0.25, 1 / 8)]


@pytest.mark.parametrize(("gib", "share"), SHARES)
def test_what_the_driver_holds_follows_its_memory(gib: float, share: float) -> None:
    whole, fitted = Limits(), Limits.for_memory(int(gib * 2**30))
    follow = HELD if share < 1 else GROWING
    for each in fields(Limits):
        expected = getattr(whole, each.name) * (share if each.name in follow else 1)
        assert abs(getattr(fitted, each.name) - expected) <= 1, each.name
    assert fitted.least_slice_changes <= fitted.slice_changes
    assert fitted.snapshot_file_rows <= fitted.merge_rows, "files that a merge has written are small for ever"
    assert fitted.sweep_rows <= fitted.apply_rows
    assert fitted.sliced_changes <= fitted.driver_changes
    assert fitted.compact_long_rows <= min(fitted.change_rows, fitted.state_changes, fitted.merge_changes)


@pytest.mark.parametrize(("heap", "share"), [(None, 3), (2**34, 3), (5_600 * 2**20, 2), (2**30, 1)])
def test_they_grow_with_the_heap_only(heap: int | None, share: int) -> None:
    """A small heap makes nothing smaller: the memory does."""
    assert Limits.for_memory(64 * 2**30, heap).refresh_changes == share * Limits().refresh_changes
    assert Limits.for_memory(2 * 2**30, heap) == Limits.for_memory(2 * 2**30)


@pytest.mark.parametrize(
    ("text", "mib"), [("4g", 4096), ("512m", 512), ("700", 700), ("2T", 2**21), ("1024kb", 1), ("much", None)]
)
def test_the_heap_is_read_as_spark_reads_it(text: str, mib: int | None) -> None:
    assert connect._heap({"spark.driver.memory": text}, None) == (mib and mib * 2**20)
    assert connect._heap({}, None) is None


def test_every_bound_in_the_table_of_the_driver_follows_its_memory() -> None:
    text = (Path(__file__).parents[2] / "docs/deploying.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 4]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[3])} & {
        f.name for f in fields(Limits)
    }
    assert len(named) >= 10
    assert named - set(HELD) == {"apply_rows"}


def test_an_engine_gets_the_bounds_of_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "memory_bytes", lambda: 2 * 2**30)
    with cq_engine.connect(tmp_path, scheduler=False) as engine:
        assert engine.catalog.limits == Limits.for_memory(2 * 2**30) != Limits()
    with cq_engine.connect(tmp_path, scheduler=False, limits=Limits()) as engine:
        assert engine.catalog.limits == Limits()


def test_the_memory_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limited").write_text(f"{2**30}\n")
    (tmp_path / "open").write_text("max\n")
    monkeypatch.setattr(memory, "_GROUP_LIMITS", [tmp_path / "open", tmp_path / "none"])
    whole = memory.memory_bytes()
    monkeypatch.setattr(memory, "_GROUP_LIMITS", [tmp_path / "open", tmp_path / "limited"])
    assert memory.memory_bytes() == 2**30 < whole
