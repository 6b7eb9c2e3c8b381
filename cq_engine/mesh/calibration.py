"""The factors of the cost model, measured on this machine (`cq calibrate`) and kept for the account's next engines.

A table of made-up rows is written to a temporary file and read as a mesh reads it, one page at a time and many, so that a line through the
times of both says what a request and what a byte costs (c_I/O). Keys enter the window, leave it and are asked as in a mesh. Factors are kept in
`mesh.json` of the cache directory; CQ_CALIBRATION=off makes engines take the defaults.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cq_engine.core import private
from cq_engine.core.columns import Column
from cq_engine.core.errors import CQError
from cq_engine.core.user_cache import cache_directory
from cq_engine.mesh.cost import Factors
from cq_engine.mesh.hashed_keys import HashedKeys
from cq_engine.mesh.packed_keys import Keys, in_order
from cq_engine.mesh.pages import Pages

__all__ = ["calibrate", "load_factors", "measure", "store_factors"]

_FILE = "mesh.json"
_COLUMNS = (Column("k", "bigint"), Column("a", "bigint"), Column("b", "double"), Column("note", "string"))
_LEAST = 1e-12
"""No factor is 0, whatever a clock says."""
_DOMAIN = 10**15
"""Keys are below it, and not dense."""


def calibrate() -> tuple[Factors, Path]:
    """Measures the factors and keeps them; the file. Raises CQError where there is no place for it."""
    factors = measure()
    path = store_factors(factors)
    if path is None:
        raise CQError(
            "there is no directory for what was measured",
            hint="set CQ_CACHE_DIR to a directory that this account may write",
        )
    return factors, path


def measure(page_rows: int = 10_000, pages: int = 60, keys: int = 100_000, rounds: int = 5) -> Factors:
    """The factors of this machine, medians of so many rounds. Pages are read with a warm cache, from temporary files.

    Raises CQError where temporary files cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="cq-calibrate-", ignore_cleanup_errors=True) as directory:
            path = str(Path(directory) / "table.parquet")
            row_bytes = _write(path, page_rows, pages)
            request, page = _line(path, page_rows, pages, rounds)
    except OSError as error:
        raise CQError(f"a temporary table cannot be written: {error}") from error
    add, expire, probe, produce = _window(keys, page_rows, rounds)
    return Factors(
        request=request,
        page_byte=page / (page_rows * row_bytes),
        expire=expire,
        take=add / 4,
        add=add,
        probe=probe,
        produce=produce,
    )


def _write(path: str, page_rows: int, pages: int) -> float:
    """Writes a table of so many row groups; the bytes of a row in memory."""
    numbers = np.random.default_rng(7)
    rows = page_rows * pages
    table = pa.table(
        {
            "k": np.arange(rows),
            "a": numbers.integers(0, 10**9, rows),
            "b": numbers.random(rows),
            "note": pa.array(numbers.integers(10**15, 10**16, rows).astype(str)),
        }
    )
    pq.write_table(table, path, row_group_size=page_rows)
    return float(table.nbytes / rows)


def _line(path: str, page_rows: int, count: int, rounds: int) -> tuple[float, float]:
    """Seconds of a request, and of a page."""
    pages = Pages(None, 4)
    image = pages.image([path], _COLUMNS)

    def read(chunk: int) -> float:
        def run() -> None:
            for start in range(0, count, chunk):
                for _ in pages.read(image.pages[start : start + chunk], _COLUMNS, page_rows):
                    pass

        return _timed(run, rounds)

    single, many = read(1), read(count)
    pages.close()
    request = max(_LEAST, (single - many) / max(1, count - 1))
    return request, max(_LEAST, (many - request) / count)


def _window(keys: int, page_rows: int, rounds: int) -> tuple[float, float, float, float]:
    """Seconds of adding, of removing, of asking for a row, and of a row that is found."""
    numbers = np.random.default_rng(8)
    batches = [Keys.of(in_order(pa.array(numbers.integers(0, _DOMAIN, keys // 4)))) for _ in range(4)]
    rows = pa.table({"k": numbers.integers(0, _DOMAIN, page_rows), "a": numbers.random(page_rows)})
    adds, removes, probes, takes = [], [], [], []
    for _ in range(rounds):
        hashed = HashedKeys(pa.int64())
        for batch in batches[:-1]:
            hashed.add(batch)
        adds.append(_timed(lambda: hashed.add(batches[-1]), 1) / batches[-1].count)  # noqa: B023 - called at once
        probes.append(_timed(lambda: hashed.probe(rows.column("k").combine_chunks()), 1) / page_rows)  # noqa: B023
        removes.append(_timed(lambda: hashed.remove(batches[-1]), 1) / batches[-1].count)  # noqa: B023
        places = pa.array(np.arange(0, page_rows, 2))
        takes.append(_timed(lambda: rows.take(places), 1) / len(places))  # noqa: B023
    return tuple(max(_LEAST, median(each)) for each in (adds, removes, probes, takes))  # type: ignore[return-value]


def _timed(work: Callable[[], object], rounds: int) -> float:
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return median(found)


# ---------------------------------------------------------------- what is kept


def store_factors(factors: Factors, environ: Mapping[str, str] | None = None) -> Path | None:
    """Keeps the factors; the file, or None where there is no cache directory. Raises CQError where it cannot be written."""
    directory = cache_directory(environ)
    if directory is None:
        return None
    path = directory / _FILE
    try:
        private.make_directory(directory)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(factors), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise CQError(f"the factors cannot be kept in {path}: {error.strerror}") from error
    return path


def load_factors(environ: Mapping[str, str] | None = None) -> Factors | None:
    """What `cq calibrate` has measured here; None where it has not, or CQ_CALIBRATION is off. A file that cannot be
    read counts as none."""
    environ = os.environ if environ is None else environ
    directory = cache_directory(environ)
    if directory is None or environ.get("CQ_CALIBRATION", "").strip().lower() in {"off", "0", "no", "false"}:
        return None
    try:
        found = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        values = {field.name: float(found[field.name]) for field in fields(Factors)}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = all(math.isfinite(value) and value > 0 for value in values.values())
    return Factors(**values) if whole else None
