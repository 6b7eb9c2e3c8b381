"""Files as others write them, and a model of what a table has then."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cq_engine import Engine
from cq_engine.core.limits import Limits

Row = tuple[Any, ...]
COLUMNS = "k BIGINT, d DECIMAL(10, 2), at TIMESTAMP, s STRING"
NAMES = ("k", "d", "at", "s")
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
LOW = Limits(pending_rows=20)
KINDS = ("csv", "json", "parquet")


class Crash(BaseException):
    """In the place of a process that ends."""


def declare(
    engine: Engine,
    inbox: Path,
    kind: str,
    using: str = "LOG",
    columns: str = COLUMNS,
    options: str = "",
    capture: str = "",
) -> None:
    engine.execute(f"CREATE TABLE t ({columns})")
    engine.execute(
        f"CREATE SOURCE lake TYPE {kind} WITH (path = '{inbox}', settled = '0 seconds'{options and ', ' + options})"
    )
    engine.execute(f"CREATE CAPTURE c INTO t FROM lake USING {using} {capture} ON DEMAND")


def text_of(kind: str, rows: list[Row]) -> bytes:
    """A file of rows, as others write it."""
    if kind == "csv":
        out = io.StringIO()
        writer = csv.writer(out, quoting=csv.QUOTE_MINIMAL)
        writer.writerow(["S", "at", "K", "other", "d"])
        for k, d, at, s in rows:
            shown = f'"{s}"' if s == "" else None
            line = io.StringIO()
            csv.writer(line).writerow([s, at and at.isoformat(), k, "x", d])
            out.write(
                line.getvalue() if shown is None else shown + line.getvalue()[line.getvalue().index(",") :]
            )
        return out.getvalue().encode()
    if kind == "json":
        lines = [
            {"K": k, "d": d if d is None else str(d), "at": at and at.isoformat(), "s": s, "other": [1]}
            for k, d, at, s in rows
        ]
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    kinds = [pa.int32(), pa.decimal128(12, 2), pa.timestamp("ns"), pa.large_string()]
    arrays = (
        [pa.array(some, of) for some, of in zip(zip(*rows), kinds)]
        if rows
        else [pa.nulls(0, k) for k in kinds]
    )
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays, names=["k", "D", "at", "s"]), buffer)
    return bytes(buffer.getvalue())


def put(path: Path, text: bytes, second: int = 0) -> None:
    """A file that appears whole, written at a second of 2026."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}").write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    moment = BEGIN.timestamp() + second
    os.utime(path.with_name(f".{path.name}"), (moment, moment))
    path.with_name(f".{path.name}").rename(path)


def here(engine: Engine, columns: str = "k, d, at, s", table: str = "t") -> list[Row]:
    return sorted(engine.execute(f"SELECT {columns} FROM {table}").fetchall(), key=repr)


@dataclass
class Writer:
    """Writes files of random rows; what a table with the key k, and one without, have then."""

    dice: random.Random
    kind: str
    directory: Path
    rows: list[Row] = field(default_factory=list)
    number: int = 0

    def write(self, most: int = 8) -> None:
        self.number += 1
        rows = [self.row() for _ in range(self.dice.randint(0, most))]
        ending = self.kind + self.dice.choice(["", ".gz"] if self.kind != "parquet" else [""])
        name = f"{self.dice.randint(0, 99):02d}-{self.number}.{ending}"
        put(self.directory / self.dice.choice(["", "below"]) / name, text_of(self.kind, rows), self.number)
        self.rows += rows

    def row(self) -> Row:
        dice = self.dice
        moment = BEGIN + timedelta(microseconds=dice.randint(0, 10**12))
        return (
            dice.randint(0, 15),
            dice.choice([None, Decimal("1.50"), Decimal("-2.25")]),
            dice.choice([None, moment]),
            dice.choice([None, "", "a\nb" if self.kind == "csv" else "c", "ü,;'", 'x"y', " z "]),
        )

    def wanted(self, key: bool) -> list[Row]:
        rows = list({row[0]: row for row in self.rows}.values()) if key else self.rows
        return sorted(rows, key=repr)
