"""A defining query taken apart: the join of tables that stay at their sources, and the query over the table that has its rows.

The tables must stand in the FROM of one SELECT, joined with each other by equalities. Its conditions over nothing but them go along.
Everything else stays as it was, over the columns of the new table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from cq_engine.algebra.dialect import parse_expression, write
from cq_engine.catalog.graph import source_query
from cq_engine.catalog.model import CatalogState, Table
from cq_engine.core.errors import AnalysisError, location_at
from cq_engine.grammar.names import quote_name
from cq_engine.query.references import find_references
from cq_engine.sources.remote.trees import (
    alone,
    from_of,
    in_delta_function,
    is_delta_function,
    set_name,
    shadowed,
)
from cq_engine.sources.remote.view import RemoteView, conjuncts, edge_of

__all__ = ["HiddenColumn", "Split", "remote_names", "split"]

NameOf = Callable[[exp.Select], str]
"""What Spark calls the only column of a SELECT."""


@dataclass(frozen=True)
class HiddenColumn:
    """A column of the table that has the rows of the join."""

    name: str
    alias: str
    column: str


@dataclass(frozen=True)
class Split:
    """`query` reads `table`, whose rows are those of `view`; its key are the columns `key`."""

    view: RemoteView
    columns: tuple[HiddenColumn, ...]
    key: tuple[str, ...]
    query: str
    table: str


def remote_names(state: CatalogState, text: str) -> list[str]:
    """The tables that stay at their sources which a query reads, in lower case, each once."""
    names = (reference.name.lower() for reference in find_references(text))
    found = [n for n in names if n in state.tables and state.tables[n].remote is not None]
    return list(dict.fromkeys(found))


def split(state: CatalogState, text: str, table: str, name_of: NameOf) -> Split:
    """Takes the query `text` apart, which Spark has analysed; the rows of its join will be in `table`.

    Raises AnalysisError, with the place, for what cannot be maintained so.
    """
    return _Splitter(state, text, table, name_of).split()


class _Splitter:
    def __init__(self, state: CatalogState, text: str, table: str, name_of: NameOf) -> None:
        self.state = state
        self.text = text
        self.table = table
        self.name_of = name_of
        self.tree = parse_expression(text)
        self.names: dict[tuple[str, str], str] = {}
        """By alias and column (as the table writes it) the column of the new table."""
        self.remote: dict[str, Table] = {}

    def split(self) -> Split:
        select = self._select()
        items = self._items(select)
        self.remote = {
            alias: found for alias, item in items.items() if (found := self._remote(item)) is not None
        }
        for alias, found in self.remote.items():
            self._check_table(found, items[alias])
        self._check_joins(select)
        self._expand_stars(select, items)
        self._name_items(select)
        self._qualify(select, items)
        inside, outside = self._conditions(select)
        self._check_connected(inside)
        key = self._keys()
        self._rebuild(select, outside)
        self._replace(select)
        columns = tuple(HiddenColumn(name, alias, column) for (alias, column), name in self.names.items())
        view = RemoteView(self._view_sql(columns, inside), self.remote)
        return Split(view, columns, key, write(self.tree), self.table)

    # ------------------------------------------------------------ where the tables are

    def _remote(self, item: exp.Expr) -> Table | None:
        if not isinstance(item, exp.Table) or not isinstance(item.this, exp.Identifier):
            return None
        if item.this.meta.get("start") not in self._starts:
            return None
        return self.state.tables[item.name.lower()]

    @property
    def _starts(self) -> set[int]:
        wanted = set(remote_names(self.state, self.text))
        return {r.start for r in find_references(self.text) if r.name.lower() in wanted}

    def _select(self) -> exp.Select:
        """The SELECT that names the tables."""
        found: list[exp.Select] = []
        for item in self.tree.find_all(exp.Table):
            if self._remote(item) is None:
                continue
            place = item.parent
            select = place.parent if isinstance(place, exp.From | exp.Join) else None
            if not isinstance(select, exp.Select):
                raise self._error(
                    item,
                    f"{item.name} stands in brackets, or where no rows are joined",
                    "join it by name in FROM",
                )
            if item.args.get("sample") is not None or item.args.get("pivots"):
                raise self._error(item, f"TABLESAMPLE and PIVOT are not for {item.name}", "leave it out")
            if found and found[0] is not select:
                raise self._error(
                    item,
                    f"{item.name} stands in another SELECT than the other tables that stay at their sources",
                    "join these tables in one SELECT; what is above it may be anything",
                )
            found.append(select)
        self._check_place(found[0])
        return found[0]

    def _check_place(self, select: exp.Select) -> None:
        """Raises AnalysisError where the SELECT is an expression's subquery."""
        node: exp.Expr | None = select.parent
        while node is not None:
            if isinstance(node, exp.Subquery) and isinstance(node.parent, exp.From | exp.Join):
                node = node.parent.parent
                continue
            if not isinstance(node, exp.Select | exp.CTE | exp.With | exp.SetOperation | exp.Subquery):
                table = next(t for t in select.find_all(exp.Table) if self._remote(t) is not None)
                raise self._error(
                    table,
                    f"{table.name} stands in a subquery of an expression",
                    "join it in FROM, and ask there for what the subquery asks",
                )
            node = node.parent

    def _items(self, select: exp.Select) -> dict[str, exp.Expr]:
        """What FROM has, by alias, in order."""
        found: dict[str, exp.Expr] = {}
        first = from_of(select)
        for item in [first.this, *(join.this for join in select.args.get("joins") or [])]:
            found[item.alias_or_name] = item
        return found

    def _check_table(self, table: Table, item: exp.Expr) -> None:
        remote = table.remote
        assert remote is not None
        if table.primary_key is None:
            raise self._error(
                item,
                f"{table.name} has no primary key",
                "declare PRIMARY KEY (...): by it rows are told apart",
            )
        if not remote.log:
            raise self._error(
                item,
                f"nothing tells what changes in {table.name}",
                f"create it with USING LOG WITH (install = true), so that a log may be written at source {remote.source}",
            )

    def _check_joins(self, select: exp.Select) -> None:
        for join in select.args.get("joins") or []:
            item = join.this
            if join.args.get("using") or join.args.get("method"):
                raise self._error(
                    item,
                    "USING and NATURAL are not for joins of tables that stay at their sources",
                    "write ON",
                )
            side, is_remote = join.side.upper(), self._remote(item) is not None
            is_plain = not side and join.kind.upper() in ("", "INNER", "CROSS")
            if is_plain or (side == "LEFT" and not is_remote):
                continue
            raise self._error(
                item,
                "an outer join cannot be maintained with tables that stay at their sources, but one to the left of a table"
                " of the warehouse",
                "join them by JOIN ... ON, and put LEFT JOIN of other tables behind them",
            )

    # ------------------------------------------------------------ names

    def _expand_stars(self, select: exp.Select, items: Mapping[str, exp.Expr]) -> None:
        made: list[exp.Expr] = []
        for each in select.expressions:
            if isinstance(each, exp.Star):
                if any(each.args.values()):
                    raise self._error(
                        next(iter(items.values())),
                        "* EXCEPT and * REPLACE are not for these tables",
                        "name the columns",
                    )
                for alias, item in items.items():
                    made += self._columns(alias, item)
            elif (
                isinstance(each, exp.Column) and isinstance(each.this, exp.Star) and each.table in self.remote
            ):
                made += self._columns(each.table, items[each.table])
            else:
                made.append(each)
        select.set("expressions", made)

    def _columns(self, alias: str, item: exp.Expr) -> list[exp.Expr]:
        known: Sequence[str] | None = None
        if isinstance(item, exp.Table):
            table, query = self.state.tables.get(item.name.lower()), source_query(self.state, item.name)
            if table is not None:
                known = [column.name for column in table.columns]
            elif query is not None:
                known = [column.name for column in query.result.columns[: query.width]]
        if known is None:
            raise self._error(item, f"* does not say which columns of {alias} are meant", "name the columns")
        return [exp.column(name, table=alias, quoted=True) for name in known]

    def _name_items(self, select: exp.Select) -> None:
        """Gives what has no name the one that Spark gives it."""
        named: list[exp.Expr] = []
        for each in select.expressions:
            if isinstance(each, exp.Column) and not isinstance(each.this, exp.Star):
                named.append(exp.alias_(each.copy(), each.name, quoted=True))
            elif isinstance(each, exp.Alias | exp.Aliases | exp.Star | exp.Column) or is_delta_function(each):
                named.append(each)
            else:
                named.append(exp.alias_(each.copy(), self.name_of(alone(select, each)), quoted=True))
        select.set("expressions", named)

    def _qualify(self, select: exp.Select, items: Mapping[str, exp.Expr]) -> None:
        """Writes the alias before every column of the tables."""
        outputs = {each.alias.lower() for each in select.expressions if isinstance(each, exp.Alias)}
        by_case = {alias.lower(): alias for alias in items}
        for column in list(select.find_all(exp.Column)):
            if isinstance(column.this, exp.Star) or in_delta_function(column):
                continue
            alias = by_case.get(column.table.lower()) if column.table else None
            if alias is not None and alias in self.remote and not shadowed(column, select, alias):
                name = self._own_name(alias, column.name)
                if name is not None:
                    set_name(column, alias, name)
            elif not column.table and column.find_ancestor(exp.Select) is select:
                owners = [each for each in self.remote if self._own_name(each, column.name) is not None]
                is_output = column.name.lower() in outputs and column.find_ancestor(
                    exp.Order, exp.Having, exp.Qualify
                )
                if len(owners) == 1 and not is_output:
                    set_name(column, owners[0], self._own_name(owners[0], column.name) or column.name)

    def _own_name(self, alias: str, name: str) -> str | None:
        return next((c.name for c in self.remote[alias].columns if c.name.lower() == name.lower()), None)

    # ------------------------------------------------------------ conditions

    def _conditions(self, select: exp.Select) -> tuple[list[exp.Expr], list[exp.Expr]]:
        """Conditions that go along with the join, and those that stay above it."""
        found: list[exp.Expr] = []
        where = select.args.get("where")
        if where is not None:
            found += conjuncts(where.this)
        for join in select.args.get("joins") or []:
            if join.this.alias_or_name in self.remote and join.args.get("on") is not None:
                found += conjuncts(join.args["on"])
        inside = [each for each in found if self._goes_along(each)]
        return [each.copy() for each in inside], [each.copy() for each in found if each not in inside]

    def _goes_along(self, condition: exp.Expr) -> bool:
        columns = list(condition.find_all(exp.Column))
        if not columns or any(column.table not in self.remote for column in columns):
            return False
        return condition.find(exp.Anonymous, exp.Query, exp.AggFunc) is None

    def _check_connected(self, inside: Sequence[exp.Expr]) -> None:
        edges = [edge for each in inside if (edge := edge_of(each, self.remote)) is not None]
        reached = {next(iter(self.remote))}
        while (
            more := {s[0] for e in edges for s in (e.left, e.right) if {e.left[0], e.right[0]} & reached}
            - reached
        ):
            reached |= more
        for alias in self.remote:
            if alias not in reached:
                start = next(t for t in self.tree.find_all(exp.Table) if t.alias_or_name == alias)
                raise self._error(
                    start,
                    f"no equality joins {alias} with the other tables that stay at their sources",
                    "join them by ON a = b, over whole numbers, text, decimals or dates of one kind: by such keys sources are asked",
                )

    # ------------------------------------------------------------ the two parts

    def _keys(self) -> tuple[str, ...]:
        return tuple(
            self._hidden(alias, self._own_name(alias, column) or column)
            for alias, table in self.remote.items()
            for column in table.primary_key or ()
        )

    def _hidden(self, alias: str, column: str) -> str:
        if (alias, column) not in self.names:
            name = f"{alias}_{column}".lstrip("_") or "c"
            taken, number = {each.lower() for each in self.names.values()}, 2
            made = name
            while made.lower() in taken:
                made, number = f"{name}_{number}", number + 1
            self.names[alias, column] = made
        return self.names[alias, column]

    def _rebuild(self, select: exp.Select, outside: Sequence[exp.Expr]) -> None:
        """FROM the new table, and the others as they were."""
        joins = select.args.get("joins") or []
        first = from_of(select).this
        kept = [join for join in joins if join.this.alias_or_name not in self.remote]
        if first.alias_or_name not in self.remote:
            kept.insert(0, exp.Join(this=first.copy(), kind="CROSS"))
        name = exp.to_identifier(self.table, quoted=True)
        select.set("from_" if "from_" in select.args else "from", exp.From(this=exp.Table(this=name)))
        select.set("joins", kept)
        select.set("where", None)
        for condition in outside:
            select.where(condition, copy=False, dialect="spark")

    def _replace(self, select: exp.Select) -> None:
        for column in list(select.find_all(exp.Column)):
            if (
                column.table not in self.remote
                or isinstance(column.this, exp.Star)
                or in_delta_function(column)
            ):
                continue
            if self._own_name(column.table, column.name) is not None and not shadowed(
                column, select, column.table
            ):
                set_name(column, self.table, self._hidden(column.table, column.name))

    def _view_sql(self, columns: Sequence[HiddenColumn], inside: Sequence[exp.Expr]) -> str:
        items = ", ".join(
            f"{quote_name(c.alias)}.{quote_name(c.column)} AS {quote_name(c.name)}" for c in columns
        )
        tables = ", ".join(
            f"{quote_name(table.name)} AS {quote_name(alias)}" for alias, table in self.remote.items()
        )
        where = " AND ".join(f"({write(each)})" for each in inside)
        return f"SELECT {items} FROM {tables}" + (f" WHERE {where}" if where else "")

    def _error(self, item: exp.Expr, message: str, hint: str) -> AnalysisError:
        start = item.this.meta.get("start") if isinstance(item, exp.Table) else None
        location = None if start is None else location_at(self.text, start)
        return AnalysisError(message, hint=hint, location=location)
