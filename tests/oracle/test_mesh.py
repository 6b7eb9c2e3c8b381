"""Mesh joins keep the delta law: random histories, both modes, tables that change and are compacted, against the oracle."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cq_engine.mesh.window import Window
from cq_engine.refresh.mesh import QueryMesh
from cq_engine.refresh.prefetch import Prefetch
from tests.oracle.budget import budget
from tests.oracle.generate import History
from tests.oracle.law import Broken
from tests.oracle.shop import shop_histories
from tests.oracle.warehouse import Tally, _Replay, check_in_fresh_warehouse

PAGES = {
    "small_rows": -1,
    "row_group_rows": 2,
    "snapshot_file_rows": 6,
    "compact_rows": 0,
    "compact_long_rows": 1,
    "relevant_rows": 0,
}
"""Every table is huge: pages of two rows, and what has changed is merged at every chance."""
PART = 3
"""Change rows of a part of the log, beyond a commit: so that the next parts gather their rows while one is refreshed."""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often rows came from a scan, and how many pages that read."""
    counts: Counter[str] = Counter()
    right = QueryMesh.rows

    def rows(self: QueryMesh, *given: Any) -> Any:
        how, found = right(self, *given)
        counts["asked"] += 1
        if how == "mesh":
            counts["meshed"] += 1
            counts["pages"] += given[5][-1].done.pages
        return how, found

    def take(self: Prefetch, *given: Any) -> Any:
        part = taken(self, *given)
        counts["gathered before"] += part is not None
        return part

    taken = Prefetch.take
    monkeypatch.setattr(Prefetch, "take", take)
    monkeypatch.setattr(QueryMesh, "changes", PART)
    monkeypatch.setattr(QueryMesh, "rows", rows)
    commit = _Replay.commit

    def merged(self: _Replay, statements: Any) -> None:
        """Tables get new snapshots between commits, so that there is something to scan."""
        commit(self, statements)
        for table in self.recorded.history.tables:
            if self.random.random() < 0.5:
                self.engine.compact(table.name)

    monkeypatch.setattr(_Replay, "commit", merged)
    return counts


@pytest.mark.parametrize("join", ["mesh", "auto"])
def test_mesh_joins_keep_the_law(spark: SparkSession, served: Counter[str], join: str) -> None:
    """Small as the tables are, `auto` looks up."""
    more = {
        "mesh": ("memory = '64 KB'", "pre_image = 'sql', form = 'general'"),
        "auto": ("memory = '64 KB'",),
    }[join]

    @budget("CQ_ORACLE_EXAMPLES", 2 if join == "mesh" else 1)
    @given(history=shop_histories("", queries=2, transactions=(3, 5)), options=st.sampled_from(more))
    def check(history: History, options: str) -> None:
        check_in_fresh_warehouse(history, spark, Tally(), f"join = '{join}', {options}", PAGES)

    check()
    if join == "mesh":
        assert served["meshed"] > 0
        assert served["pages"] > 10, "there were pages to scan"
        assert served["gathered before"] > 0, "parts of the log were prefetched"
    print(dict(served))


@pytest.mark.long
def test_a_mesh_that_expires_too_early_breaks_it(
    spark: SparkSession, served: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Window.enter

    def enter(self: Window[Any], batch: Any) -> None:
        if batch.remaining > 1:
            batch.left[: len(batch.left) // 2] = False
            batch.remaining = int(batch.left.sum())
        right(self, batch)

    monkeypatch.setattr(Window, "enter", enter)

    @budget("CQ_ORACLE_EXAMPLES", 4)
    @given(history=shop_histories("", queries=3, transactions=(4, 6)))
    def check(history: History) -> None:
        check_in_fresh_warehouse(history, spark, Tally(), "join = 'mesh'", PAGES)

    with pytest.raises(Broken):
        check()
