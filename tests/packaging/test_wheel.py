"""What a user installs: one top-level package with everything in it, and the module by which PySpark finds it, however the symbolic links are packed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKED = (
    "cq_engine",
    "pyspark_cq.py",
    "grammar",
    "catalog",
    "destinations",
    "pyproject.toml",
    "LICENSE",
    "README.md",
)
LINKS = ("grammar", "catalog", "destinations")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and the wheel built from it, of a copy of the tree (building writes into the tree)."""
    pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path_factory.mktemp("tree")
    for name in PACKED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, tree / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, tree / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tree / "dist"), str(tree)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return tree / "dist"


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_only_top_levels_are_cq_engine_and_what_pyspark_looks_for(names: list[str]) -> None:
    top_levels = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top_levels == {"cq_engine", "pyspark_cq.py"}


def test_every_source_file_is_in_the_wheel(names: list[str]) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for folder in ("cq_engine", *(f"cq_engine/{link}" for link in LINKS))
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".lark", ".properties", ".sql"} or path.name == "py.typed"
    }
    assert expected <= set(names), sorted(expected - set(names))
    assert {"cq_engine/py.typed", "cq_engine/launch/log4j2.properties", "cq_engine/grammar/cq.lark"} <= set(
        names
    )


def test_no_tests_or_caches_are_in_the_wheel(names: list[str]) -> None:
    assert [name for name in names if "/tests/" in name or "__pycache__" in name] == []


def test_the_sdist_holds_each_module_where_the_import_finds_it(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    assert "cq_engine/grammar/cq.lark" in members
    assert "cq_engine/grammar/statements.py" in members


def test_the_metadata_names_licence_python_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert "cq = cq_engine.cli:main" in entry_points


def test_check_wheel_contents_finds_nothing(wheel: Path) -> None:
    pytest.importorskip("check_wheel_contents")
    checked = subprocess.run(
        [sys.executable, "-m", "check_wheel_contents", str(wheel)],
        capture_output=True,
        text=True,
        check=False,
        cwd=wheel.parent,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
