"""Which files a path in a store means, and with which keys a bucket beside the warehouse is reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cq_engine
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.catalog.storage.location import open_beside, open_store
from cq_engine.catalog.storage.objects import ObjectStore
from cq_engine.storage.outside_files import find


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("in", ["in/a.csv", "in/b.csv", "in/c[1].csv"]),
        ("in/", ["in/a.csv", "in/b.csv", "in/c[1].csv"]),
        ("in/a.csv", ["in/a.csv"]),
        ("in/*", ["in/_dir/e.csv", "in/a.csv", "in/b.csv", "in/c[1].csv", "in/deep/d.csv"]),
        ("in/?.csv", ["in/a.csv", "in/b.csv"]),
        ("in/[!a].csv", ["in/b.csv"]),
        ("in/{a,c*}.csv", ["in/a.csv", "in/c[1].csv"]),
        ("*/b.csv", ["in/b.csv"]),
        ("in/deep", ["in/deep/d.csv"]),
        (r"in/c\[1\].csv", ["in/c[1].csv"]),
        ("in/[!d]*p/d.csv", []),
        ("{in/deep/d,in/a}.csv", ["in/a.csv", "in/deep/d.csv"]),
        ("in/{a,{b,deep/d}}.csv", ["in/a.csv", "in/b.csv", "in/deep/d.csv"]),
        ("in/dee[!q]d.csv", []),
    ],
)
def test_names_mean_what_they_mean_to_spark(
    spark: SparkSession, tmp_path: Path, pattern: str, found: list[str]
) -> None:
    for name in (
        "in/a.csv",
        "in/b.csv",
        "in/c[1].csv",
        "in/_no.csv",
        "in/.no.csv",
        "in/deep/d.csv",
        "in/_dir/e.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    if not found:
        with pytest.raises(cq_engine.CQError, match="there are no files"):
            find(LocalStore(str(tmp_path)), pattern)
        return
    assert [each.path for each in find(LocalStore(str(tmp_path)), pattern)] == found
    theirs = [row[0] for row in spark.read.text(f"{tmp_path}/{pattern}").collect()]
    assert sorted(theirs) == found


def test_what_is_not_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "in" / "day=1").mkdir(parents=True)
    (tmp_path / "in" / "b.csv").write_text("beside the partitions")
    (tmp_path / "in" / "day=1" / "a.csv").write_text("a")
    store = LocalStore(str(tmp_path))
    for pattern, text in (
        ("in", "in partitions"),
        ("none", "there are no files"),
        ("gone/[", "no pattern"),
        ("{in", "no pattern"),
    ):
        with pytest.raises(cq_engine.CQError, match=text):
            find(store, pattern)


def test_the_keys_of_the_warehouse_open_what_lies_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"access_key_id": "k", "secret_access_key": "s"}
    known = open_store("s3://lake/shop", keys)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "half of a pair")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    found = open_beside("s3a://other/in/x y.csv", known)
    assert found is not None
    assert (found[0].location, found[1]) == ("s3://other", "in/x y.csv")
    assert isinstance(found[0], ObjectStore)
    assert found[0].access is known.access  # type: ignore[attr-defined]
    azure = open_store("abfss://lake@one.dfs.core.windows.net/shop", {"account_key": "a2V5"})
    for account, same in (("one", True), ("two", False)):
        beside = open_beside(f"abfss://other@{account}.dfs.core.windows.net/x", azure)
        assert beside is not None
        assert isinstance(beside[0], ObjectStore)
        assert (beside[0].access.account, beside[0].access is azure.access) == (account, same)  # type: ignore[attr-defined]
    assert open_beside("oss://lake/x", known) is None
    with pytest.raises(cq_engine.CQError, match="the URL does not name a bucket"):
        open_beside("s3:///x.csv", known)
    with pytest.raises(cq_engine.CQError, match="one is not given"):
        open_beside("s3://lake/x.csv", azure)
