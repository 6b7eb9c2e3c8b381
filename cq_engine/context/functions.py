"""Functions of the user: Python functions of this process and SQL functions of the catalog, as Spark knows them.

Both are temporary functions of the engine's Spark session, put there when the session is used. Two engines in one
session see each other's; a name that means two things there is an error.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlglot
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from sqlglot import exp
from sqlglot.errors import SqlglotError

from cq_engine.catalog.functions import closure, put_function
from cq_engine.catalog.model import CatalogState, SqlFunction
from cq_engine.core.columns import quote
from cq_engine.core.errors import AnalysisError, CatalogError, RefreshError
from cq_engine.core.types import canonical_type, spark_type
from cq_engine.grammar import CreateFunction
from cq_engine.spark.sql import SPARK_ERRORS, translate_errors

__all__ = ["Functions", "PythonFunction"]


@dataclass(frozen=True)
class PythonFunction:
    """A registered Python function; `returns` is a Spark type as text."""

    name: str
    function: Callable[..., Any]
    returns: str
    deterministic: bool
    arrow: bool


Function: TypeAlias = "PythonFunction | SqlFunction"

_sessions: weakref.WeakKeyDictionary[SparkSession, dict[str, tuple[weakref.ref[Functions], Function]]] = (
    weakref.WeakKeyDictionary()
)
"""Which engine's function a name is, by session."""
_guard = threading.RLock()


class Functions:
    """The functions that an engine's queries may call. Thread-safe."""

    def __init__(self) -> None:
        self._python: dict[str, PythonFunction] = {}
        self._seen: tuple[SparkSession, Mapping[str, PythonFunction], Mapping[str, SqlFunction]] | None = None

    # ------------------------------------------------------------ Python functions

    def register(self, function: PythonFunction, state: CatalogState) -> None:
        """Makes a Python function known; it takes the place of an earlier one of its name.

        Raises CatalogError where the name is a SQL function's or one that Spark has, AnalysisError for a type.
        """
        _check_name(function.name)
        spark_type(function.returns)
        if function.name.lower() in state.functions:
            raise CatalogError(f"{function.name} is a SQL function", hint=f"DROP FUNCTION {function.name}")
        with _guard:
            self._python = {**self._python, function.name.lower(): function}

    @property
    def python(self) -> Mapping[str, PythonFunction]:
        """The Python functions by lower-case name."""
        return self._python

    # ------------------------------------------------------------ SQL functions

    def create(
        self, statement: CreateFunction, state: CatalogState, spark: Callable[[], SparkSession]
    ) -> CatalogState:
        """The state with the function of CREATE FUNCTION, which Spark has accepted.

        Raises CatalogError where the name is taken, CQSyntaxError and AnalysisError where Spark refuses the function.
        """
        _check_name(statement.name)
        if statement.name.lower() in self._python:
            raise CatalogError(f"{statement.name} is a Python function", hint="choose another name")
        function = self._sql_function(statement, state)
        after = put_function(state, function, or_replace=statement.or_replace)
        session = spark()
        with _guard:
            self._put(session, function)
            self._seen = None  # where the catalog's transaction fails, the next use puts the session right
        return after

    def _sql_function(self, statement: CreateFunction, state: CatalogState) -> SqlFunction:
        from cq_engine.algebra.functions import nondeterministic_call

        tree, says_not = _body(statement)
        uses = closure(state, (n for n in _calls_in(tree) if n in state.functions or n in self._python))
        fixed = not says_not and nondeterministic_call(tree) is None and not self._odd(uses, state)
        return SqlFunction(statement.name, statement.definition, fixed, uses)

    # ------------------------------------------------------------ calls in continuous queries

    def calls_in(self, text: str, state: CatalogState) -> tuple[str, ...]:
        """The functions of the user that a defining query calls, also inside of SQL functions, lower case.

        Raises AnalysisError for one that is not deterministic.
        """
        from cq_engine.algebra.dialect import parse_expression

        try:
            tree = parse_expression(text)
        except SqlglotError:
            return ()
        names = [n for n in _calls_in(tree) if n in state.functions or n in self._python]
        for name in names:
            if self._odd(closure(state, [name]), state):
                raise AnalysisError(
                    f"function {name} cannot stand in a continuous query",
                    detail="it is not deterministic: a row that leaves could not be taken back as it came",
                    hint="keep its value in a column of the table, or register it as deterministic if it is",
                )
        return closure(state, names)

    def _odd(self, names: Iterable[str], state: CatalogState) -> bool:
        known: dict[str, Function] = {**state.functions, **self._python}
        return any(name in known and not known[name].deterministic for name in names)

    def require(self, query: str, names: Iterable[str], state: CatalogState) -> None:
        """Raises RefreshError where one of the functions that `query` calls is not registered in this process."""
        missing = [name for name in names if name not in self._python and name not in state.functions]
        if missing:
            raise RefreshError(
                f"continuous query {query} calls function {missing[0]}, which is not registered in this process",
                detail="nothing is lost: its changes wait",
                hint=f'register it: @engine.function("{missing[0]}", returns=...)',
            )

    # ------------------------------------------------------------ the Spark session

    def install(self, spark: SparkSession, state: CatalogState) -> None:
        """Brings the session's temporary functions up to date; quick where nothing has changed.

        Raises CatalogError where a name means something else there.
        """
        python, sql = self._python, state.functions
        if (
            self._seen is not None
            and self._seen[0] is spark
            and self._seen[1] is python
            and self._seen[2] is sql
        ):
            return
        with _guard:
            known = _known(spark)
            for name in [n for n, (owner, _) in known.items() if owner() is self]:
                if name not in python and name not in sql:
                    self._take_out(spark, name)
            for function in python.values():
                self._put(spark, function)
            for name in _in_order(sql):
                if all(use in known for use in sql[name].uses):  # else it waits for a Python function
                    self._put(spark, sql[name])
            self._seen = (spark, python, sql)

    def release(self, spark: SparkSession) -> None:
        """Takes this engine's functions out of the session, which may be stopped already."""
        with _guard:
            self._seen = None
            for name in [n for n, (owner, _) in _known(spark).items() if owner() is self]:
                with suppress(*SPARK_ERRORS, OSError):
                    self._take_out(spark, name)

    def _put(self, spark: SparkSession, function: Function) -> None:
        known, name = _known(spark), function.name.lower()
        owner, there = known.get(name, (None, None))
        if there == function:
            return
        if owner is not None and owner() not in (None, self):
            raise CatalogError(
                f"function {function.name} is another engine's in this Spark session",
                hint="give each engine a session of its own: connect(..., spark=spark.newSession())",
            )
        if owner is None and spark.catalog.functionExists(name):
            raise CatalogError(f"Spark has a function {function.name}", hint="choose another name")
        with translate_errors():
            if isinstance(function, SqlFunction):
                head = "CREATE OR REPLACE TEMPORARY FUNCTION"
                spark.sql(f"{head} {quote(function.name)}{function.definition}")
            else:
                made = udf(function.function, spark_type(function.returns), useArrow=function.arrow)
                spark.udf.register(name, made if function.deterministic else made.asNondeterministic())
        known[name] = (weakref.ref(self), function)

    def _take_out(self, spark: SparkSession, name: str) -> None:
        _known(spark).pop(name, None)
        spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {quote(name)}")

    # ------------------------------------------------------------ looking

    def rows(self, state: CatalogState) -> list[tuple[str, str, str, bool, str]]:
        """Name, language, signature, deterministic, and the queries that call it, of every function by name; also of
        those that a query waits for."""
        found = [(f.name, "SQL", f.definition, f.deterministic) for f in state.functions.values()]
        found += [
            (f.name, "PYTHON", f"returns {canonical_type(f.returns)}", f.deterministic)
            for f in self._python.values()
        ]
        there = {name.lower() for name, *_ in found}
        waited = {n for q in state.queries.values() for n in q.functions} - there
        found += [(name, "PYTHON", "not registered in this process", True) for name in waited]
        return [
            (*row, ", ".join(q.name for q in state.queries.values() if row[0].lower() in q.functions))
            for row in sorted(found)
        ]


def _known(spark: SparkSession) -> dict[str, tuple[weakref.ref[Functions], Function]]:
    return _sessions.setdefault(spark, {})


def _in_order(functions: Mapping[str, SqlFunction]) -> list[str]:
    """Each after those that it calls; `uses` holds indirect ones, too, so that it has more of them."""
    return sorted(functions, key=lambda name: (len(functions[name].uses), name))


def _check_name(name: str) -> None:
    """A name that sqlglot reads as a function of some dialect would not reach Spark as it is written."""
    from cq_engine.algebra.functions import nondeterministic_call

    if not name.isidentifier() or name.lower().startswith(("cq_", "delta_")):
        raise CatalogError(
            f"{name} cannot be the name of a function",
            hint="it begins with a letter, and neither with cq_ nor with delta_",
        )
    try:
        found = sqlglot.parse_one(f"{name}(1)", dialect="spark")
    except SqlglotError:
        found = None
    if not isinstance(found, exp.Anonymous) or nondeterministic_call(found) is not None:
        raise CatalogError(f"{name} is the name of a function already", hint="choose another name")


def _body(statement: CreateFunction) -> tuple[exp.Expr, bool]:
    """The expression after RETURN, and whether NOT DETERMINISTIC stands before it."""
    from cq_engine.algebra.dialect import parse_expression

    text = statement.definition
    tokens = sqlglot.tokenize(text, dialect="spark")
    words = [token.text.upper() for token in tokens]
    at = words.index("RETURN") if "RETURN" in words else 0
    if at == 0:
        raise AnalysisError(
            f"function {statement.name} has no RETURN",
            hint="write CREATE FUNCTION f(a INT) RETURN expression",
        )
    if "TABLE" in words[:at]:
        raise AnalysisError(f"{statement.name} is a table function", detail="only scalar functions are known")
    try:
        tree = parse_expression("SELECT " + text[tokens[at].end + 1 :])
    except SqlglotError as error:
        raise AnalysisError(
            f"the expression of function {statement.name} cannot be read",
            detail=str(error).splitlines()[0],
        ) from error
    return tree, "NOT DETERMINISTIC" in " ".join(words[:at])


def _calls_in(tree: exp.Expr) -> list[str]:
    return list(dict.fromkeys(str(node.name).lower() for node in tree.find_all(exp.Anonymous)))
