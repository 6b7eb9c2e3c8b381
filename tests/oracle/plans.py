"""Delta plans run in DuckDB: the algebra, the rules and the planner, without Spark, catalog or transactions.

The plan of a refresh is Spark SQL; sqlglot turns it into DuckDB's. Thousands of refreshes take a minute this way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from cq_engine.algebra.emit import Emitter, quote, sql_of
from cq_engine.algebra.nodes import (
    BEFORE,
    FOREVER,
    FROM,
    TO,
    VERSION,
    WEIGHT,
    Changes,
    Given,
    History,
    Node,
    RuntimeFilter,
    Scan,
    StateRows,
)
from cq_engine.catalog.change_rows import ROW_ID
from cq_engine.catalog.model import Table, VersionedTable
from cq_engine.core.columns import ROW_FROM, ROW_TO, ROW_VERSION, ROW_WEIGHT, Column
from cq_engine.core.types import arrow_schema, arrow_type
from cq_engine.delta.images import changes_sql, history_sql, net_sql
from cq_engine.delta.stored import initial_state
from cq_engine.evaluation.vectors import Rows, TooLargeError, UnsupportedError
from cq_engine.planner.compiled import Compiled, StoredAggregate, compile_query
from cq_engine.planner.delta_plan import Stage, Statement, plan_delta
from tests.oracle.law import Broken, Change, Row, row_of
from tests.oracle.recorded import Recorded

__all__ = ["PlannedQuery", "Plans", "TwoRows", "spark_type"]


_SPARKS_NULLS = "nulls_first_on_asc_last_on_desc"
_REWRITES = (
    (r"`", '"'),
    (r"<=>", "IS NOT DISTINCT FROM"),
    (r"\bLEFT (ANTI|SEMI) JOIN\b", r"\1 JOIN"),
    (r"named_struct\('v', (\w+), 'w', (-?1)\)", r"{'v': \1, 'w': \2}"),
    (r"LATERAL VIEW explode\(array\((.*?)\)\) (\w+) AS (\w+)", r"CROSS JOIN UNNEST([\1]) AS \2(\3)"),
    (r"LATERAL VIEW explode\(sequence\(1, (CAST\(abs\(_w\) AS int\))\)\) (\w+) AS (\w+)",
     r"CROSS JOIN UNNEST(range(0, \1)) AS \2(\3)"),
    (r"FROM VALUES (.*?) AS (t\d+)\(", r"FROM (VALUES \1) AS \2("),
)  # fmt: skip


@lru_cache(maxsize=2000)
def _quickly(sql: str) -> str:
    """What the engine emits, in DuckDB's words; sqlglot needs ten times as long."""
    for pattern, replacement in _REWRITES:
        sql = re.sub(pattern, replacement, sql)
    return sql


@lru_cache(maxsize=2000)
def _duckdb_sql(sql: str) -> str:
    return sqlglot.transpile(sql, read="spark", write="duckdb")[0]


UNDO = True
"""Do row versions have what changed rows were before from their before-images? Plans at once need that."""
ROWS = 1_000_000
"""Rows that a statement may have for Arrow."""
VALIDITY = (Column(FROM, "bigint"), Column(TO, "bigint"))


class TwoRows(Broken):
    """A refresh found two rows with one result key."""


class Plans:
    """The tables of a recorded history in DuckDB, with every image and change log, ready for delta plans."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.base = duckdb.connect()
        self.base.execute("SET threads = 1")
        self.base.execute("PRAGMA disable_optimizer")
        self._null_order = ""
        self.tables: dict[str, Table] = {}
        self.repairs = 0
        self.refreshes = 0
        self.evaluated: Counter[str] = Counter()
        """How many statements Arrow evaluated, too, and why it did not evaluate the others."""
        for number, spec in enumerate(recorded.history.tables):
            columns = tuple(Column(name, kind.lower()) for name, kind in spec.columns)
            storage = VersionedTable(number, spec.kind, spec.name, columns, spec.key or (ROW_ID,))
            self.tables[spec.name] = Table(spec.name, storage, spec.key or None)
            self._load(self.tables[spec.name])

    def _load(self, table: Table) -> None:
        name, hidden = table.name, table.storage.has_row_id
        shown = ", ".join(f"{c.name} {c.type}" for c in table.storage.physical_columns)
        self.base.execute(f"CREATE TABLE log_{name} ({shown}, _change_type STRING, _commit_version BIGINT)")
        self.base.execute(f"CREATE TABLE image_{name} ({shown}, _at BIGINT)")
        logged = [
            (*row, *([identity] if hidden else []), kind, version)
            for row, identity, kind, version in self.recorded.changes[name]
        ]
        images = [
            (*row, *([identity] if hidden else []), at)
            for at, image in enumerate(self.recorded.images)
            for identity, row in image[name].rows.items()
        ]
        for target, rows in ((f"log_{name}", logged), (f"image_{name}", images)):
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self.base.executemany(f"INSERT INTO {target} VALUES ({marks})", rows)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a Spark SQL query."""
        return self._execute("", sql).fetchall()

    def table(self, sql: str, columns: Sequence[Column]) -> pa.Table:
        """The same in Arrow, with these types."""
        values = list(zip(*self.run(sql))) or [()] * len(columns)
        arrays = [pa.array(each, arrow_type(c.type)) for each, c in zip(values, columns)]
        return pa.Table.from_arrays(arrays, schema=arrow_schema(columns))

    def _execute(self, prefix: str, sql: str) -> duckdb.DuckDBPyConnection:
        try:
            self._order_nulls(_SPARKS_NULLS)
            return self.base.execute(prefix + _quickly(sql))
        except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException):
            self._order_nulls("nulls_last")  # sqlglot leaves out what it takes for DuckDB's default
            return self.base.execute(prefix + _duckdb_sql(sql))

    def _order_nulls(self, order: str) -> None:
        """Where NULL stands under an ORDER BY that does not say it."""
        if order != self._null_order:
            self.base.execute(f"SET default_null_order = '{order}'")
            self._null_order = order

    def described(self, sql: str) -> list[tuple[str, str]]:
        """(name, Spark type) of the columns of a Spark SQL query."""
        found = self._execute("DESCRIBE ", sql).fetchall()
        return [(d[0], spark_type(str(d[1]))) for d in found]

    def image(self, name: str, version: int) -> str:
        """A relation with the table's rows after `version`, with the hidden row identity."""
        columns = ", ".join(quote(c.name) for c in self.tables[name].storage.physical_columns)
        return f"(SELECT {columns} FROM image_{name} WHERE _at = {version})"

    def compile(self, number: int, declared: tuple[str, ...] | None = None) -> Compiled:
        """The recorded history's query `number`."""
        text = self.recorded.history.queries[number]
        used = [t.name.lower() for t in sqlglot.parse_one(text, dialect="spark").find_all(exp.Table)]
        sources = {name: table for name, table in self.tables.items() if name in used}
        columns = [Column(name, spark_type(kind)) for name, kind in self.recorded.columns[number]]

        return compile_query(text, columns, sources, declared, _DuckTypes(self))

    def scan(self, leaf: Node, version: int) -> str:
        assert isinstance(leaf, Scan)
        fields = ", ".join(f"{quote(source)} AS {quote(name)}" for name, source in leaf.fields)
        return f"(SELECT {fields} FROM {self.image(leaf.table, version)})"

    def initial(self, stored: StoredAggregate, version: int) -> list[tuple[Any, ...]]:
        """The state's rows at `version`."""
        emitter = Emitter(lambda leaf: self.scan(leaf, version))
        return self.run(emitter.statement("SELECT * FROM {0}", initial_state(stored.node, stored.state)))

    def make(self, name: str, sql: str) -> None:
        """A table with the rows of a Spark SQL query."""
        self._execute(f"CREATE OR REPLACE TEMP TABLE {name} AS ", sql)

    def put(self, name: str, columns: Sequence[Column], rows: Iterable[tuple[Any, ...]]) -> None:
        """A table with just these rows."""
        self.base.execute(
            f"CREATE OR REPLACE TABLE {name} ({', '.join(f'{c.name} {c.type}' for c in columns)})"
        )
        rows = list(rows)
        if rows:
            self.base.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)


class _DuckTypes:
    """DuckDB's types in Spark's words."""

    def __init__(self, plans: Plans) -> None:
        self.plans = plans

    def __call__(self, node: Node, expressions: Sequence[exp.Expr]) -> Sequence[str]:
        body = Emitter(lambda leaf: self.plans.scan(leaf, 0)).statement("SELECT @items FROM {0}", node)
        items = ", ".join(f"{sql_of(e)} AS c{i}" for i, e in enumerate(expressions))
        return [kind for _, kind in self.plans.described(body.replace("@items", items))]

    def comparison_type(self, left: str, right: str) -> str:
        common = f"SELECT COALESCE(CAST(NULL AS {left}), CAST(NULL AS {right})) AS c"
        return self.plans.described(common)[0][1]


def spark_type(kind: str) -> str:
    """DuckDB's sums of integers are HUGEINT, Spark's BIGINT."""
    return {"INTEGER": "int", "HUGEINT": "bigint", "VARCHAR": "string"}.get(kind, kind.lower())


class PlannedQuery:
    """A query with its states at a version; `refresh` moves it on."""

    def __init__(self, plans: Plans, compiled: Compiled, position: int, compressed: bool = False) -> None:
        self.plans = plans
        self.compiled = compiled
        self.position = position
        self.compressed = compressed
        self.base_version = position
        """From which image on the uncompacted logs of the tables are read."""
        self.states = {s.state.label: plans.initial(s, position) for s in compiled.states}
        count = compiled.key_count
        if count is not None and any(row[len(count.keys)] > 1 for row in self.states[count.state.label]):
            raise TwoRows

    @property
    def key_places(self) -> list[int] | None:
        if self.compiled.key is None:
            return None
        names = [c.name.lower() for c in self.compiled.columns]
        return [names.index(k.lower()) for k in self.compiled.key]

    def refresh(self, upto: int) -> list[Change]:
        """The deltas of (position, upto]."""
        a, b = self.position, upto
        recorded = self.plans.recorded
        kinds: dict[str, set[str]] = {}
        for name in self.compiled.sources:
            found = {kind for _, _, kind, version in recorded.changes[name] if a < version <= b}
            if found:
                kinds[name] = found
        self.position = b
        if not kinds:
            return []
        self.plans.refreshes += 1
        insert_only = all(found == {"insert"} for found in kinds.values())
        leaves = _Leaves(self, a, b)
        at_once = UNDO and self.plans.refreshes % 2 == 0
        plan = plan_delta(self.compiled, frozenset(kinds), insert_only, at_once=at_once)
        if plan is None:
            return []
        for stage in plan.stages:
            rows = self._run(stage.statement, leaves)
            if stage.hit is not None:
                rows = self._repaired(stage, rows, leaves)
            leaves.give(stage.node, (*stage.stored.columns, *VALIDITY), rows)
            self._advance(stage.stored, rows)
        return self._changes(self._run(plan.statement, leaves))

    def _run(self, statement: Statement, leaves: _Leaves) -> list[tuple[Any, ...]]:
        """What DuckDB gives for the statement, and what Arrow gives, where it gives something, is the same."""
        rows = self.plans.run(statement.text(leaves, leaves.attach))
        try:
            table = statement.evaluate(leaves.rows, ROWS)
        except (UnsupportedError, TooLargeError) as reason:
            self.plans.evaluated[f"{type(reason).__name__} {reason}"] += 1
            return rows
        self.plans.evaluated["evaluated"] += 1
        arrays = [column.to_pylist() for column in table.columns]
        mine = list(zip(*arrays)) if arrays else []
        keyless = statement.name == "log" and self.compiled.key is None
        place = table.column_names.index("_sequence") if keyless else -1
        expected, found = (
            Counter(row_of(value for n, value in enumerate(row) if n != place) for row in each)
            for each in (rows, mine)
        )
        if expected != found:
            raise Broken(
                f"Arrow gives other rows than SQL for {statement.name}:\n"
                f"missing {expected - found}\ntoo many {found - expected}\n"
                f"{statement.text(leaves, leaves.attach)}"
            )
        return rows

    def _repaired(self, stage: Stage, rows: list[tuple[Any, ...]], leaves: _Leaves) -> list[tuple[Any, ...]]:
        assert stage.hit is not None
        width = len(stage.stored.keys)
        hit = {row_of(row[:width]): row[:width] for row in rows if row[-1]}
        if not hit:
            return [row[:-1] for row in rows]
        leaves.give(
            stage.hit,
            stage.stored.columns[:width] or (Column("one", "int"),),
            hit.values() if width else [(1,)],
        )
        self.plans.repairs += len(hit)
        fixed = self._run(stage.repair_statement, leaves)
        return [row[:-1] for row in rows if not row[-1]] + fixed

    def _advance(self, stored: StoredAggregate, versions: list[tuple[Any, ...]]) -> None:
        """Puts the groups' last versions in the place of the old ones; groups without rows leave."""
        width = len(stored.keys)
        inside = [row for row in versions if row[-2] > BEFORE]
        if stored is self.compiled.key_count and any(row[width] > 1 for row in inside):
            raise TwoRows
        fresh = {row_of(row[:width]): row[:-2] for row in inside if row[-1] == FOREVER}
        kept = [row for row in self.states[stored.state.label] if row_of(row[:width]) not in fresh]
        kept += [row for row in fresh.values() if row[width] > 0 or not width]
        self.states[stored.state.label] = kept

    def _changes(self, log: list[tuple[Any, ...]]) -> list[Change]:
        width = len(self.compiled.columns)
        places = self.key_places
        pairs: dict[tuple[int, int], dict[str, Row]] = {}
        for row in log:
            kind, version, sequence, duplicate = row[width:]
            if duplicate:
                raise TwoRows
            pairs.setdefault((version, sequence), {})[kind] = row_of(row[:width])
        changes = []
        for (version, sequence), rows in sorted(pairs.items()):
            new = rows.get("insert", rows.get("update_postimage"))
            old = rows.get("delete", rows.get("update_preimage"))
            marker = "D" if new is None else "I" if old is None else "U"
            shown = new if new is not None else old
            assert shown is not None
            key = None if places is None else tuple(shown[p] for p in places)
            changes.append(Change(version, sequence, marker, key, new, old))
        return changes


class _Leaves:
    """Binds the leaves of a delta plan over (a, b]; the tables' images are read at `base_version` <= a."""

    def __init__(self, query: PlannedQuery, a: int, b: int) -> None:
        self.query, self.a, self.b = query, a, b
        self.base = min(query.base_version, a)
        self.emitter: Emitter | None = None
        self.given: dict[int, Sequence[Column]] = {}
        self.wanted: dict[tuple[int, str], str] = {}

    def attach(self, emitter: Emitter) -> None:
        self.emitter = emitter

    def rows(self, leaf: Node) -> Rows:
        """The rows of a leaf in memory."""
        emitter = Emitter(self)
        outer, self.emitter = self.emitter, emitter
        shown = ", ".join(map(quote, leaf.columns))
        body = emitter.statement(f"SELECT {shown} FROM {{0}}", leaf)
        self.emitter = outer
        columns = [Column(name, kind) for name, kind in self.query.plans.described(body)]
        return Rows.of(self.query.plans.table(body, columns), columns, leaf.columns)

    def give(self, node: Given, columns: Sequence[Column], rows: Iterable[tuple[Any, ...]]) -> None:
        """Says what rows the leaf `node` stands for."""
        self.query.plans.put(f"given_{node.name}", columns, rows)
        self.given[id(node)] = columns

    def __call__(self, leaf: Node) -> str:
        if isinstance(leaf, Given):
            shown = (f"{quote(c.name)} AS {quote(n)}" for c, n in zip(self.given[id(leaf)], leaf.names))
            return f"(SELECT {', '.join(shown)} FROM given_{leaf.name})"
        if isinstance(leaf, StateRows):
            stored = next(s for s in self.query.compiled.states if s.state.label == leaf.label)
            name = f"state_{leaf.label}"
            self.query.plans.put(name, stored.columns, self.query.states[leaf.label])
            fields = ", ".join(f"{quote(c.name)} AS {quote(n)}" for c, n in zip(stored.columns, leaf.names))
            return f"(SELECT {fields} FROM {name})"
        assert isinstance(leaf, (Changes, History))
        storage = self.query.plans.tables[leaf.scan.table].storage
        fields = ", ".join(f"{quote(source)} AS {quote(name)}" for name, source in leaf.scan.fields)
        net = self._net(storage)
        if isinstance(leaf, Changes):
            rows = changes_sql(net, [c.name for c in storage.columns], self.a)
            return f"(SELECT {fields}, {ROW_VERSION} AS {VERSION}, {ROW_WEIGHT} AS {WEIGHT} FROM ({rows}))"
        columns = [c.name for c in storage.physical_columns]
        kinds = {
            k for _, _, k, v in self.query.plans.recorded.changes[storage.name] if self.base < v <= self.b
        }
        image = self._restricted(leaf, storage)
        only_inserts = kinds == {"insert"}
        rows = history_sql(image, net if kinds else None, columns, storage.identity, self.a, only_inserts)
        return f"(SELECT {fields}, {ROW_FROM} AS {FROM}, {ROW_TO} AS {TO} FROM ({rows}))"

    def _net(self, storage: VersionedTable) -> str:
        assert self.emitter is not None
        name = f"net_{storage.name}"
        log = f"(SELECT * FROM log_{storage.name} WHERE _commit_version > {self.base} AND _commit_version <= {self.b})"
        columns = [c.name for c in storage.physical_columns]
        self.emitter.ctes[name] = net_sql(
            log, columns, storage.identity, self.a, self.b, self.query.compressed
        )
        return name

    def _restricted(self, leaf: History, storage: VersionedTable) -> str:
        """The image with only the rows that the leaf's filters let through, or one of its groups of filters."""
        image = self.query.plans.image(storage.name, self.base)
        groups = []
        for filters in leaf.among or (leaf.filters,):
            conditions = []
            for filter_ in filters:
                own = f"i.{quote(leaf.scan.source_of(filter_.column))}"
                wanted = f"SELECT 1 FROM {self._values(filter_)} w WHERE w.v <=> {own}"
                conditions.append(f"EXISTS ({wanted})")
            groups.append(" AND ".join(conditions))
        return f"(SELECT * FROM {image} i WHERE {' OR '.join(groups)})" if all(groups) else image

    def _values(self, filter_: RuntimeFilter) -> str:
        """A table with the values that the filter_ wants, computed by the plan itself."""
        label = (id(filter_.leaf), filter_.of_column)
        if label not in self.wanted:
            name = self.wanted[label] = f"wanted_{len(self.wanted)}"
            emitter = Emitter(self)
            outer, self.emitter = self.emitter, emitter
            body = emitter.statement(
                f"SELECT DISTINCT {quote(filter_.of_column)} AS v FROM {{0}}", filter_.leaf
            )
            self.emitter = outer
            self.query.plans.make(name, body)
        return self.wanted[label]
