"""Limits that take the ways of large tables, large intervals and small memories, whatever the size."""

from __future__ import annotations

import random
from typing import Any

from tests.limits import forced

__all__ = ["CHEAP", "COSTLY", "STORED", "some_paths"]

CHEAP: dict[str, dict[str, Any]] = {
    "no image in memory": {"small_rows": 0, "relevant_rows": 0},
    "no memory for images": {"small_bytes": 0},
    "no image in memory, few literals": {"small_rows": 0, "relevant_rows": 0, "in_list": 1},
    "recompute": {"recompute_rows": 0, "recompute_share": 0.0},
    "no combinations of keys": {"key_combinations": 0},
    "no known values": {"known_values": 0},
    "no look-up by key": {"key_values": 0},
    "statements by Spark": {"arrow_rows": -1},
    "one plan": {"plans": 1},
    "own plans at once": {"own_plan_uses": 0},
    "no general plans": {"plan_misses": 0},
    "small plan inputs": {"input_least_bytes": 1024, "input_most_bytes": 4096},
    "no plan inputs": {"input_most_bytes": 0},
    "changes in files": {"inline_bytes": 0},
    "no inline cache": {"inline_cache_bytes": 0},
    "merge all": {"compact_rows": 0, "compact_long_rows": 0, "compact_share": 1000},
    "small files": {"snapshot_file_rows": 2, "row_group_rows": 2, "staged_file_rows": 2},
    "deltas in small blocks": {"log_block_rows": 1},
    "few files looked up": {"look_up_files": 0},
    "few rows looked up": {"look_up_rows": 0, "small_rows": 0},
    "few changes applied": {"change_rows": 0, "change_files": 0},
    "column copies": {"column_copy_common": 1, "column_copy_search": 1000},
    "few row ids": {"row_ids": 1},
    "intervals in slices": {"slice_changes": 1, "least_slice_changes": 0},
    "slices of files": {
        "slice_changes": 1,
        "least_slice_changes": 0,
        "inline_bytes": 0,
        "kept_change_bytes": 0,
    },
    "settle at once": {"settle_rows": 0, "settle_cursors": 1},
    "flush row by row": {"flush_rows": 1},
}
COSTLY: dict[str, dict[str, Any]] = {
    "delta by executors": forced(bulk=True, large=False),
    "delta by executors of large tables": forced(bulk=True, large=True),
    "deltas of executors by the driver": {"refresh_changes": 0, "recompute_bytes": -1},
    "files and tasks of few bytes": {
        "file_least_bytes": 1,
        "file_most_bytes": 200,
        "local_bytes": 100,
        "one_part_bytes": 100,
    },
    "few delta rows": {"refresh_rows": 0},
    "changes netted by Spark": forced(bulk=False, large=False, spark=True),
    "changes of large tables netted by Spark": forced(bulk=False, large=True, spark=True),
    "tables read by Spark": {"driver_rows": -1},
    "bytes read by Spark": {"driver_bytes": -1},
    "states merged by Spark": {"state_changes": -1},
    "effects staged by executors": {"pending_rows": 0},
    "starts by executors": {"start_rows": 0},
    "merges by Spark": {"merge_changes": 0, "merge_rows": 0, "compact_rows": 0, "compact_long_rows": 0},
    "merges of few files by Spark": {"merge_driver_rows": -1, "compact_rows": 0, "compact_long_rows": 0},
}

_MERGE = {"compact_rows": 0, "compact_long_rows": 0, "compact_share": 1000}
STORED: dict[str, dict[str, Any]] = {
    "changes in files": {"inline_bytes": 0, "change_files": 10_000},
    "merge all": _MERGE,
    "merge all files": {**_MERGE, "inline_bytes": 0, "change_files": 10_000},
    "small files": {"snapshot_file_rows": 2, "row_group_rows": 2, "staged_file_rows": 2},
    "no image in memory": {"small_rows": 0, "relevant_rows": 0},
    "no inline cache": {"inline_cache_bytes": 0},
    "few row ids": {"row_ids": 1},
    "intervals in slices": {"slice_changes": 1, "least_slice_changes": 0},
    "slices of files": {
        "slice_changes": 1,
        "least_slice_changes": 0,
        "inline_bytes": 0,
        "kept_change_bytes": 0,
    },
    "flush row by row": {"flush_rows": 1},
    "column copies": {"column_copy_common": 1, "column_copy_search": 1000},
    "plan merges slice by slice": {"merge_rows": 2},
}
"""For tables alone, where Spark has no part."""


def some_paths(chosen: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """A few of the paths; most episodes have no costly one."""
    found = chosen.sample(sorted(CHEAP.items()), chosen.choice((0, 1, 2, 4)))
    return found + chosen.sample(sorted(COSTLY.items()), chosen.choice((0, 0, 1, 2)))
