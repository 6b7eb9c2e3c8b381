"""COPY INTO from a bucket of which Spark's session has no file system.

Executors read Parquet through Arrow. Of CSV and JSON they read lines, which Spark's own functions take apart (`from_csv`,
`from_json`), so that options, types and errors are those of Spark's readers. What these do with whole files only, or by the
names of directories, is refused.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cq_engine.catalog.storage.base import Found, Store
from cq_engine.core.columns import Column
from cq_engine.core.errors import AnalysisError
from cq_engine.core.limits import Limits
from cq_engine.spark.sql import quote
from cq_engine.storage import outside_files

__all__ = ["OutsideFiles"]

_WHOLE = {
    "multiline": "true", "linesep": "", "pathglobfilter": "", "recursivefilelookup": "true", "modifiedbefore": "", "modifiedafter": "",
    "mergeschema": "true", "basepath": "", "ignorecorruptfiles": "true", "ignoremissingfiles": "true",
}  # fmt: skip
"""Options that only Spark's readers heed, with the value for which they would be needed; any, where it is empty."""
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
        return outside_files.find(self.store, self.inside)

    @property
    def bytes(self) -> int:
        """What they weigh."""
        return sum(file.size for file in self.files)

    def parquet(self) -> DataFrame:
        """Their rows, with the columns of the first of them."""
        self._check()
        columns = outside_files.parquet_columns(self.store, self.files[0])
        return outside_files.parquet(self.spark, self.store, self.files, columns, self.limits)

    def count(self, rows: DataFrame) -> int:  # noqa: ARG002 - the footers say it
        """How many rows files of Parquet have."""
        return outside_files.parquet_rows(self.store, self.files)

    def json(self, columns: Sequence[Column]) -> DataFrame:
        """A row for each object; a line is one, or an array of some."""
        self._check()
        lines = outside_files.read_lines(self.spark, self.store, self.files, self.limits)
        kind = f"struct<{', '.join(f'{quote(c.name)}: {c.type}' for c in columns)}>"
        one, some = (f.from_json("value", each, dict(self.options)) for each in (kind, f"array<{kind}>"))
        rows = f.when(f.ltrim("value").startswith("["), f.coalesce(some, f.array(one))).otherwise(
            f.array(one)
        )
        return lines.select(f.inline(rows))

    def csv_names(self) -> list[str]:
        """What the header of the first file says."""
        self._check()
        line = outside_files.first_line(self.store, self.files[0], self._option("comment"))
        given = {
            "delimiter": self._option("sep", self._option("delimiter", ",")).replace("\\t", "\t"),
            "quotechar": self._option("quote", '"')[:1] or None,
            "escapechar": self._option("escape", "\\")[:1] or None,
        }
        try:
            return next(csv.reader([line], **given), []) if line else []  # type: ignore[arg-type]
        except (TypeError, csv.Error) as error:
            raise AnalysisError(
                f"the header of {self.store.uri(self.files[0].path)} cannot be read", detail=str(error)
            ) from error

    def csv(self, columns: Sequence[Column]) -> DataFrame:
        """A row for each line, but for the header."""
        self._check()
        header = self._option("header").lower() == "true"
        lines = outside_files.read_lines(
            self.spark, self.store, self.files, self.limits, header=header, comment=self._option("comment")
        )
        kind = ", ".join(f"{quote(c.name)} {c.type}" for c in columns)
        return lines.select(f.inline(f.array(f.from_csv("value", kind, dict(self.options)))))

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
