"""The delta law beyond the bounds of the driver: what does not fit is read, refreshed, written and merged another way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cq_engine.core.limits import HELD, Limits
from tests.limits import forced, many_rows
from tests.oracle import warehouse
from tests.oracle.budget import budget
from tests.oracle.generate import History
from tests.oracle.shop import shop_histories
from tests.oracle.warehouse import Tally, check_in_fresh_warehouse

TALLY = Tally()
FILES = {
    **forced(bulk=True, large=True), "inline_bytes": -1, "start_rows": -1, "row_group_rows": 2,
    "change_bytes": 0, "row_group_files": 1, "driver_change_bytes": -1, "most_tasks": 1, "refresh_inline_bytes": 0,
}  # fmt: skip
"""Everything lies in files, of which the driver reads next to nothing, a task each piece of work."""
IMAGES = {
    **forced(bulk=False, large=False, arrow=False),
    "image_frames": 1,
    "input_spare": 1,
    "input_least_bytes": 1,
}
"""Spark's inputs fit what they hold first and no more, and one image is kept as a frame."""
STAGES = {**forced(bulk=True, large=True), "log_rows": 2}
"""Of what executors compute for later statements, the driver has what is few: some of it in one refresh, the rest not."""
HELD_BY_ONE = {**dict.fromkeys(HELD, 1), "least_slice_changes": 1}
"""The driver holds one of everything."""
OF_LARGE_WRITES = {
    "column_copy_places", "flush_rows", "input_most_bytes", "snapshot_file_rows", "staged_file_rows", "sweep_rows", "recompute_bytes", "kept_change_bytes", "merge_changes", "merge_rows", "slice_changes", "staged_keys", "state_changes",
}  # fmt: skip
"""What small statements never come to; tests of `apply_changes`, of merges and of slices go beyond these."""
OTHERS = ("look_up_files", "in_list", "relevant_rows", "change_files", "log_rows", "pending_rows", "start_rows", "known_gone_rows",
          "merge_files", "image_frames", "refresh_inline_bytes", "joined_sets", "joined_rows", "row_group_files", "input_spare", "most_tasks")  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "elsewhere"),
    [
        (FILES, {"recompute_bytes"}),
        (IMAGES, set()),
        (STAGES, {"recompute_bytes"}),
        (HELD_BY_ONE, OF_LARGE_WRITES),
    ],
    ids=["files", "images", "stages", "held"],
)
def test_beyond_bounds(
    paths: Mapping[str, int], elsewhere: set[str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()

    class Watched(Limits):
        def __getattribute__(self, name: str) -> Any:
            asked.add(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(warehouse, "Limits", Watched)

    @budget("CQ_ORACLE_EXAMPLES", 1)
    @given(history=shop_histories("ENFORCED", queries=2, transactions=(3, 4)))
    def check(history: History) -> None:
        check_in_fresh_warehouse(history, spark, TALLY, paths=paths)

    with many_rows(0):
        check()
    assert set(paths) - elsewhere <= asked


def test_beyond_some_bounds(spark: SparkSession) -> None:
    tiny = st.dictionaries(st.sampled_from((*HELD, *OTHERS)), st.integers(1, 3), min_size=3)

    @budget("CQ_ORACLE_EXAMPLES", 2)
    @given(history=shop_histories("", queries=2, transactions=(3, 4)), paths=tiny, arrow=st.booleans())
    def check(history: History, paths: Mapping[str, int], arrow: bool) -> None:
        paths = {"least_slice_changes": 1, **({} if arrow else {"arrow_rows": -1}), **paths}
        check_in_fresh_warehouse(history, spark, TALLY, paths=paths)

    with many_rows(0):
        check()
