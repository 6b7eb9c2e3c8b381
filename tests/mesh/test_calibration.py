"""`cq calibrate`: what it measures, where it keeps it, and what engines make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cq_engine.cli import main
from cq_engine.core.errors import CQError
from cq_engine.mesh import calibration
from cq_engine.mesh.calibration import load_factors, measure, store_factors
from cq_engine.mesh.cost import Factors


def test_factors_are_times_of_this_machine() -> None:
    found = measure(page_rows=2_000, pages=10, keys=4_000, rounds=3)
    assert all(0 < value < 1 for value in vars(found).values())
    assert found.page_byte < 1e-5, "a page of a megabyte takes less than ten seconds"


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    environ = {"CQ_CACHE_DIR": str(tmp_path / "cache")}
    assert load_factors(environ) is None
    factors = replace(Factors(), probe=1.5e-8)
    path = store_factors(factors, environ)
    assert path == tmp_path / "cache" / "mesh.json"
    assert load_factors(environ) == factors
    assert load_factors({**environ, "CQ_CALIBRATION": "off"}) is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"request": "x"}', "\x00"])
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "mesh.json").write_text(text)
    assert load_factors({"CQ_CACHE_DIR": str(tmp_path)}) is None


def test_a_factor_that_is_no_time_counts_as_none(tmp_path: Path) -> None:
    store_factors(replace(Factors(), add=-1.0), {"CQ_CACHE_DIR": str(tmp_path)})
    assert load_factors({"CQ_CACHE_DIR": str(tmp_path)}) is None


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CQError, match="cannot be kept"):
        store_factors(Factors(), {"CQ_CACHE_DIR": str(tmp_path / "file")})


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CQ_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibration, "measure", Factors)
    assert main(["calibrate"]) == 0
    said = capsys.readouterr().out
    assert "page_byte  1.5e-09 s" in said
    assert f"kept in {tmp_path / 'mesh.json'}" in said
    monkeypatch.delenv("CQ_CALIBRATION", raising=False)
    assert load_factors() == Factors()
