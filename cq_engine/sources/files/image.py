"""USING COPY over files: they are the table as it is now, which is compared with ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cq_engine.catalog.model import Capture, DeclaredSource, Table
from cq_engine.core.errors import SourceUnavailableError
from cq_engine.sources.files.directory import Directory, Found
from cq_engine.sources.files.feed import check_table, refused
from cq_engine.sources.files.readers import Wanted, read
from cq_engine.sources.json_values import Unreadable
from cq_engine.sources.methods.base import Method, Place
from cq_engine.sources.tick import Tick

__all__ = ["FileImage"]


class FileImage(Method):
    """Positions are the sizes and times of the files: nothing is read while they stay the same."""

    def check(
        self, declared: DeclaredSource, capture: Capture, table: Table, place: Place
    ) -> tuple[Capture, list[str]]:
        check_table(declared, capture, table, place)
        return capture, []

    def run(self, tick: Tick, declared: DeclaredSource) -> None:
        place = Directory(declared, tick.capture.relation)
        found = place.files()
        if not found:
            raise SourceUnavailableError(
                f"source {declared.name} has no file at {place.path}",
                detail="nothing is taken for an empty table but a file without rows",
                hint="the option path names a directory or a file, TABLE one below it",
            )
        reached = {"files": {each.name: each.stamp for each in found}}
        settled = all(map(place.is_settled, found))
        if tick.position == reached or not settled:
            tick.move(tick.position or {})
            return

        def position() -> Mapping[str, Any]:
            if place.files() != found:
                raise SourceUnavailableError(f"files at {place.path} were written to while they were read")
            return reached

        tick.replace(_rows(tick, place, found), position)


def _rows(tick: Tick, place: Directory, found: Sequence[Found]) -> Iterator[pa.RecordBatch]:
    wanted = Wanted.of(tick.capture, tick.columns, tick.key)
    for file in found:
        try:
            for block in read(place, tick.capture, file.name, wanted) if file.size else ():
                for row, reason, _ in block.bad:
                    raise refused(tick.capture, file.name, row, reason)
                yield from block.rows.to_batches()
        except Unreadable as reason:
            raise refused(tick.capture, file.name, None, str(reason)) from reason
