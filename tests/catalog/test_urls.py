"""Where a catalog can be, and that nobody reads a password off an error."""

from __future__ import annotations

import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import cq_engine.catalog.schema
from cq_engine.catalog.store import Catalog
from cq_engine.catalog.urls import parse, without_secrets
from cq_engine.core.clock import SystemClock
from cq_engine.core.errors import CatalogError, CQError, StorageError

SECRET = "hush/hush@42"
SPELLED = ("hush%2Fhush%4042", "hush%2fhush%4042")
WITH_SECRETS = [
    "postgresql://me:{}@127.0.0.1:9/db",
    "postgresql://127.0.0.1:9/db?user=me&password={}",
    "postgresql://127.0.0.1:9/db?PassWd={}",
    "postgresql+psycopg://me@127.0.0.1:9/db?sslmode=require&sslpassword={}",
    "postgresql://me@127.0.0.1:9/db?auth_token={}",
    "postgres://me@127.0.0.1:9/db?pwd={}&client_secret={}",
    "postgresql://me:{}@127.0.0.1:9/db?nosuchoption=1",
    "postgresql://me:{}@127.0.0.1:port/db",
    "mysql://me:{}@host/db",
    "mysql+pymysql://host/db?password={}",
    "nonsense://me:{}@host/db?token={}",
    "postgresql+nonsense://me:{}@host/db",
    "sqlite+pysqlcipher://:{}@/path/to.db",
    "postgresql//me@host?password={}",
]


@pytest.mark.parametrize("url", WITH_SECRETS)
@pytest.mark.parametrize("spelled", [SPELLED[0], "plainword"])
def test_no_error_shows_a_secret(url: str, spelled: str, tmp_path: Path) -> None:
    with pytest.raises(CQError) as caught:
        Catalog.open(str(tmp_path / "w"), url=url.replace("{}", spelled), clock=SystemClock())
    assert caught.value.hint or isinstance(caught.value, StorageError)
    whole = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    for each in (SECRET, *SPELLED, "plainword"):
        assert each not in whole, whole


@pytest.mark.parametrize("between", list(":/@?#%&+ ;="))
@pytest.mark.parametrize("form", ["postgresql://me:{}@127.0.0.1:9/db", "postgres://me/us:{}@127.0.0.1:9/db"])
def test_nor_a_part_of_one_that_is_not_spelled_as_it_should_be(
    form: str, between: str, tmp_path: Path
) -> None:
    parts = ["hush" + "one", "hush" + "two"]  # the traceback shows this text
    url = form.replace("{}", between.join(parts))
    with pytest.raises(CQError) as caught:
        Catalog.open(str(tmp_path / "w"), url=url, clock=SystemClock())
    whole = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert not [part for part in parts if part in whole], whole


@pytest.mark.parametrize(
    "url", [each for each in WITH_SECRETS if each.startswith("postgres") and "9/db" in each]
)
def test_the_engine_does_not_know_it_either(url: str) -> None:
    address = parse(url.replace("{}", SPELLED[0]))
    database = cq_engine.catalog.database.Database(address, read_only=False)
    assert SECRET in address.secrets.values()
    for text in (repr(database.engine), database.shown, repr(address), str(address.url)):
        assert not any(each in text for each in (SECRET, *SPELLED)), text
    assert "***" in database.shown


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("mysql://host/db", "postgresql://user@host"),
        ("nonsense", "sqlite:////"),
        ("postgresql+asyncpg://host/db", "postgresql://user@host"),
        ("sqlite://", "sqlite:////"),
        ("", "sqlite:////"),
        ("postgresql://me:p@ss:w@host:x/db", "%40"),
    ],
)
def test_what_is_no_catalog_is_an_error_with_a_way_out(url: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogError) as caught:
        parse(url)
    assert hint in caught.value.hint
    assert not (tmp_path / "w").exists()


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")

    monkeypatch.setattr(cq_engine.catalog.schema.sa, "create_engine", missing)
    with pytest.raises(CatalogError, match="psycopg") as caught:
        cq_engine.catalog.database.Database(parse("postgresql://host/db"), read_only=False)
    assert "pip install 'cq-engine[postgres]'" in caught.value.hint


def test_secrets_in_other_texts() -> None:
    assert without_secrets("see https://me:pw@host/x?token=abc") == "see https://me:***@host/x?token=***"
    assert without_secrets("nothing: here @ all") == "nothing: here @ all"


def test_what_is_made_is_for_this_account_alone(
    open_catalog: Callable[..., Catalog], warehouse: Path
) -> None:
    before = os.umask(0)
    try:
        open_catalog().close()
    finally:
        os.umask(before)
    found = {path.relative_to(warehouse).as_posix(): _mode(path) for path in warehouse.rglob("*")}
    assert _mode(warehouse) == 0o700
    assert {mode for name, mode in found.items() if (warehouse / name).is_dir()} <= {0o700}
    assert {mode for name, mode in found.items() if (warehouse / name).is_file()} <= {0o600}
    assert {"tables", "changes", "deltas", "data"} <= set(found)


def test_a_directory_that_is_there_keeps_its_rights(
    open_catalog: Callable[..., Catalog], warehouse: Path
) -> None:
    warehouse.mkdir(parents=True, mode=0o755)
    warehouse.chmod(0o750)
    open_catalog()
    assert _mode(warehouse) == 0o750
    assert _mode(warehouse / "tables") == 0o700


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
