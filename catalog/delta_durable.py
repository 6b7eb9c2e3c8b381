"""Delta logs that outlive a power cut: the library that writes them leaves it to the system when they reach the disk.

What a commit has written is flushed before the catalog is told of it. So what a power cut has torn is the newest commit
or checkpoint, the catalog does not know it, and nobody can have read it: it is taken away, and published again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cq_engine.catalog.storage.base import Store

__all__ = ["flush_log", "mend_log"]

_LOG = "_delta_log"


def flush_log(store: Store, root: str, since: int) -> None:
    """Makes the commits of the Delta table at `root` from the version `since` on durable, and a checkpoint of the newest."""
    if not store.is_local:  # a file that is there is durable
        return
    log = f"{root}/{_LOG}"
    newest = since
    while store.has(commit := f"{log}/{newest:020}.json"):
        store.make_durable(commit)
        newest += 1
    checkpoint = f"{log}/{newest - 1:020}.checkpoint.parquet"
    for path in (checkpoint, f"{log}/_last_checkpoint") if store.has(checkpoint) else ():
        store.make_durable(path)


def mend_log(store: Store, root: str) -> None:
    """Takes away the newest commits and the newest checkpoint where they are torn. For the holder of the lease."""
    log = store.file(f"{root}/{_LOG}")
    if log is None:  # what is written there is seen when it is whole
        return
    for commit in sorted(log.glob("[0-9]*.json"), reverse=True):
        if _is_whole(commit):
            break
        commit.unlink()
    newest = max((commit.stem for commit in log.glob("[0-9]*.json")), default="")
    for checkpoint in sorted(log.glob("[0-9]*.checkpoint.parquet"), reverse=True):
        if checkpoint.name.partition(".")[0] <= newest and _is_parquet(checkpoint):
            break
        checkpoint.unlink()
    last = log / "_last_checkpoint"
    if last.exists():
        try:
            version = json.loads(last.read_text(encoding="utf-8"))["version"]
            whole = (log / f"{version:020}.checkpoint.parquet").exists()
        except ValueError:
            whole = False
        if not whole:  # only a hint where to begin
            last.unlink()


def _is_whole(commit: Path) -> bool:
    try:
        lines = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        return False
    return bool(lines)


def _is_parquet(checkpoint: Path) -> bool:
    try:
        pq.read_metadata(checkpoint)
    except (OSError, pa.ArrowException):
        return False
    return True
