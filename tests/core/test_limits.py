"""Every bound has a reason, and is read."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from cq_engine.core import limits
from cq_engine.core.limits import Limits

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
