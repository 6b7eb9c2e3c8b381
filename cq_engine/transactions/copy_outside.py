"""COPY INTO from a bucket of which Spark's session has no file system.

Executors read Parquet through Arrow. Of CSV and JSON they read lines, which Spark's own functions take apart (`from_csv`,
`from_json`), so that options, types and errors are those of Spark's readers. What these do with whole files only, or by the
names of directories, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from cq_engine.catalog.storage.base import Found, Store
from cq_engine.core.apart import apart
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.core.limits import Limits
from cq_engine.spark.sql import quote
from cq_engine.storage.outside_files import find
from cq_engine.storage.outside_lines import first_line, read_lines
from cq_engine.storage.outside_parquet import parquet, parquet_rows, parquet_types

__all__ = ["OutsideFiles"]

_WHOLE = {
    "multiline": "true", "linesep": "", "pathglobfilter": "", "recursivefilelookup": "true", "modifiedbefore": "", "modifiedafter": "",
    "mergeschema": "true", "basepath": "", "ignorecorruptfiles": "true", "ignoremissingfiles": "true",
    "enforceschema": "false", "mode": "dropmalformed",
}  # fmt: skip
"""Options that only Spark's readers heed, with the value for which they would be needed; any, where it is empty."""
_BAD = Column("_cq_malformed", "string")
_MARKED = "columnnameofcorruptrecord"
_NAMED = 1_000
"""Of more files than this an error does not name the one."""
_SHOWN = 200
_OF_VALUES = ("mode", "inferschema", _MARKED)
"""Options that say nothing of names."""
_PLAIN_TEXT = ("utf-8", "utf8", "us-ascii", "ascii")


@dataclass(frozen=True)
class OutsideFiles:
    """The files at a path of a store, with the options that Spark's reader has for them."""

    spark: SparkSession
    store: Store
    inside: str
    options: Mapping[str, str]
    limits: Limits

    @property
    def path(self) -> str:
        """Where they are."""
        return self.store.uri(self.inside)

    @cached_property
    def files(self) -> Sequence[Found]:
        """Raises StorageError where there are none, or the store refuses to tell."""
        return apart(lambda: find(self.store, self.inside))

    @property
    def bytes(self) -> int:
        """What they weigh."""
        return sum(file.size for file in self.files)

    def parquet(self) -> DataFrame:
        """Their rows, with the columns of the first of them."""
        self._check()
        files = self.files
        kinds = apart(lambda: parquet_types(self.store, files))
        return parquet(self.spark, self.store, files, kinds, self.limits)

    def count(self, rows: DataFrame) -> int:  # noqa: ARG002 - the footers say it
        """How many rows files of Parquet have."""
        files = self.files
        return apart(lambda: parquet_rows(self.store, files))

    def json(self, columns: Sequence[Column]) -> DataFrame:
        """A row for each object; a line is one, or an array of some."""
        self._check()
        lines = read_lines(self.spark, self.store, self.files, self.limits, strict=True)
        kind = f"struct<{', '.join(f'{quote(c.name)}: {c.type}' for c in (*columns, _BAD))}>"
        one, some = (f.from_json("value", each, self._parsing()) for each in (kind, f"array<{kind}>"))
        is_array = f.col("value").rlike(r"^\s*\[")
        bad = f.when(is_array, f.coalesce(f.exists(some, lambda each: each.isNull()), f.lit(True))).otherwise(
            one[_BAD.name].isNotNull()
        )
        rows = f.when(is_array, f.coalesce(some, f.array(one))).otherwise(f.array(one))
        return self._rows(lines, rows, bad, columns)

    def csv_names(self) -> list[str]:
        """What the header says: the first line of the first file that has one."""
        self._check()
        files = self.files
        line = apart(lambda: first_line(self.store, files, self._option("comment")))
        if not line:
            return []
        # By Spark's own rules, as many texts as there are.
        given = {name: each for name, each in self.options.items() if name.lower() not in _OF_VALUES}
        one, text = self.spark.range(1), f.lit(line)
        made = one.select(f.schema_of_csv(text, given)).first()
        kind = t.DataType.fromDDL(made[0] if made else "")
        names = ", ".join(f"_c{n} STRING" for n in range(len(kind.fieldNames())))  # type: ignore[attr-defined]
        row = one.select(f.from_csv(text, names, given)).first()
        return [each or f"_c{n}" for n, each in enumerate(row[0])] if row else []

    def csv(self, columns: Sequence[Column]) -> DataFrame:
        """A row for each line, but for the header."""
        self._check()
        if not columns:  # files without a header have no rows either
            return self.spark.range(0).select()
        header = self._option("header").lower() == "true"
        lines = read_lines(
            self.spark, self.store, self.files, self.limits, header=header, comment=self._option("comment")
        )
        kind = ", ".join(f"{quote(c.name)} {c.type}" for c in (*columns, _BAD))
        row = f.from_csv("value", kind, self._parsing())
        return self._rows(lines, f.array(row), row[_BAD.name].isNotNull(), columns)

    @property
    def _fails(self) -> bool:
        """Whether a malformed line is an error: what it then is, these rows say, and Spark would not."""
        return self._option("mode").upper() == "FAILFAST"

    def _parsing(self) -> dict[str, str]:
        """The options of Spark's functions, by which a malformed line is marked where it is an error."""
        if not self._fails:
            return dict(self.options)
        given = {name: value for name, value in self.options.items() if name.lower() not in ("mode", _MARKED)}
        return {**given, "mode": "PERMISSIVE", _MARKED: _BAD.name}

    def _rows(
        self, lines: DataFrame, rows: SparkColumn, bad: SparkColumn, columns: Sequence[Column]
    ) -> DataFrame:
        if self._fails:
            names = f.array(*(f.lit(self.store.uri(file.path)) for file in self.files[:_NAMED]))
            place = f.coalesce(f.try_element_at(names, f.col("file") + 1), f.lit(self.path))
            fields = ", ".join(f"{c.name} {c.type}" for c in columns)
            text = f.concat(
                place, f.lit(f" has a line that is no ({fields}): "), f.substring("value", 1, _SHOWN)
            )
            rows = f.when(bad, f.raise_error(text)).otherwise(rows)
        return lines.select(f.inline(rows)).drop(_BAD.name)

    def _option(self, name: str, default: str = "") -> str:
        return next((value for each, value in self.options.items() if each.lower() == name), default)

    def _check(self) -> None:
        """Raises AnalysisError for options that mean something only where Spark reads the files."""
        for name, value in self.options.items():
            needed = _WHOLE.get(name.lower())
            is_text = name.lower() in ("encoding", "charset")
            if (is_text and value.lower() not in _PLAIN_TEXT) or (
                needed is not None and value.lower() == (needed or value.lower())
            ):
                raise AnalysisError(
                    f"COPY INTO cannot heed {name} = {value!r} at {self.path}",
                    detail="Spark's session has no file system for it, so that the files are read line by line",
                    hint="start Spark with one (s3a:// is in hadoop-aws, which spark.jars.packages takes), or copy the files to a directory",
                )
