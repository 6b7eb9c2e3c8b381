"""The delta law for generated queries, at the level of delta plans."""

from __future__ import annotations

import pytest
from hypothesis import given

from cq_engine.planner.compiled import Compiled
from tests.oracle.budget import budget
from tests.oracle.generate import History, TableSpec, core_histories, nested_histories
from tests.oracle.law import Broken, Change, difference, replay
from tests.oracle.plans import PlannedQuery, Plans
from tests.oracle.recorded import Recorded, record
from tests.oracle.tally import Tally

TALLY = Tally()


def check_query(plans: Plans, number: int) -> str:
    """Checks one query of a recorded history in all modes; its verdict."""
    recorded = plans.recorded
    compiled = plans.compile(number)
    if compiled.node is None:
        return f"{compiled.verdict} ({compiled.reasons[0]})"
    try:
        each = _transactional(plans, number, compiled, each_commit=True)
        batch = _transactional(plans, number, compiled, each_commit=False)
        _same(each, batch)
        _compressed(plans, number, compiled)
    except Broken as problem:
        script = recorded.history.script(recorded.history.queries[number])
        raise Broken(f"{problem}\nkey {compiled.key}; {compiled.reasons}\n{script}") from None
    return compiled.verdict


def _results(recorded: Recorded, number: int) -> list[tuple[int, list[tuple[object, ...]]]]:
    return [(v, recorded.results[v][number]) for v in range(2, recorded.newest + 1)]


def _transactional(plans: Plans, number: int, compiled: Compiled, each_commit: bool) -> list[Change]:
    recorded = plans.recorded
    query = PlannedQuery(plans, compiled, 1)
    changes: list[Change] = []
    for upto in range(2, recorded.newest + 1) if each_commit else [recorded.newest]:
        changes += query.refresh(upto)
    try:
        replay(recorded.results[1][number], query.key_places, changes, _results(recorded, number))
    except Broken as problem:
        raise Broken(f"{'each commit' if each_commit else 'batch'}: {problem}") from None
    return changes


def _compressed(plans: Plans, number: int, compiled: Compiled) -> None:
    recorded = plans.recorded
    points = [v for v in range(2, recorded.newest) if (recorded.history.seed >> v) & 1] + [recorded.newest]
    query = PlannedQuery(plans, compiled, 1, compressed=True)
    changes = [change for upto in points for change in query.refresh(upto)]
    wanted = [(v, rows) for v, rows in _results(recorded, number) if v in points]
    try:
        replay(recorded.results[1][number], query.key_places, changes, wanted)
    except Broken as problem:
        raise Broken(f"compressed, refreshed at {points}: {problem}") from None


def _same(each: list[Change], batch: list[Change]) -> None:
    def flat(changes: list[Change]) -> list[tuple[object, ...]]:
        return [(c.version, c.marker, *(c.new or ()), "|", *(c.old or ())) for c in changes]

    different = difference(flat(each), flat(batch))
    if different:
        raise Broken(f"a batch gives other deltas than single refreshes: {different}")


def run(history: History, tally: Tally | None = None) -> dict[str, int]:
    """Checks every query of a history; how many had which verdict."""
    recorded = record(history)
    verdicts: dict[str, int] = {}
    if recorded.newest < 2:
        return verdicts
    tally = tally if tally is not None else Tally()
    tally.add(recorded)
    plans = Plans(recorded)
    try:
        for number, query in enumerate(history.queries):
            verdict = check_query(plans, number)
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
            tally.add_query(query, verdict)
    finally:
        tally.repairs += plans.repairs
        tally.refreshes += plans.refreshes
        plans.base.close()
    return verdicts


@budget("CQ_ORACLE_PLAN_EXAMPLES", 8)
@given(history=core_histories(queries=4))
def check_core_shapes(history: History) -> None:
    assert not any(v.startswith("FULL") for v in run(history, TALLY)), "a core shape is recomputed in full"


@budget("CQ_ORACLE_PLAN_EXAMPLES", 3)
@given(history=nested_histories(queries=3))
def check_nested_shapes(history: History) -> None:
    run(history, TALLY)


def test_core_shapes() -> None:
    check_core_shapes()
    print(f"\nso far: {TALLY}")


def test_nested_shapes() -> None:
    """With pytest -s it says what was covered."""
    check_nested_shapes()
    print(f"\nso far: {TALLY}")


def test_union_of_two_types() -> None:
    """Found with a look at the rules: the delta of one input was computed in that input's own type."""
    whole = TableSpec("t1", (("k", "INT"),), ("k",))
    broken = TableSpec("t2", (("k", "DECIMAL(10,2)"),), ())
    query = "SELECT CAST(x AS STRING) AS s FROM (SELECT k AS x FROM t1 UNION ALL SELECT k FROM t2) u"
    steps = (
        ("INSERT INTO t1 VALUES (2)",),
        ("INSERT INTO t2 VALUES (0.50)",),
        ("DELETE FROM t1 WHERE k = 1",),
    )
    run(History((whole, broken), ("INSERT INTO t1 VALUES (1)",), steps, (query,), 0))


def test_constants_of_the_query_around() -> None:
    """A subquery may name a column that is a constant: it reads no row of the query around, and is still resolved."""
    left = TableSpec("t1", (("k", "INT"), ("a", "INT")), ("k",))
    right = TableSpec("t2", (("k", "INT"), ("b", "STRING")), ("k",))
    query = (
        "WITH w AS (SELECT 'B' AS c, a FROM t1) SELECT s.a, (SELECT count(*) FROM t2 z WHERE z.b = s.c) AS n FROM w s"
        " WHERE s.a > 5 OR EXISTS (SELECT 1 FROM (SELECT y.k FROM t2 y WHERE y.b = s.c) x WHERE x.k = s.a)"
    )
    steps = (
        ("INSERT INTO t2 VALUES (1, 'B'), (2, 'C')",),
        ("UPDATE t2 SET b = 'B' WHERE k = 2", "INSERT INTO t1 VALUES (2, 1), (3, 7)"),
        ("DELETE FROM t2 WHERE k = 1",),
    )
    verdicts = run(History((left, right), ("INSERT INTO t1 VALUES (1, 2)",), steps, (query,), 0))
    assert not any(verdict.startswith("FULL") for verdict in verdicts)


@pytest.mark.parametrize(
    "exploded", ["", " LATERAL VIEW explode(array(1)) s AS e"], ids=["as it is", "translated"]
)
@pytest.mark.parametrize(
    ("order", "first"), [("ASC", None), ("ASC NULLS LAST", 1), ("DESC", 2), ("DESC NULLS FIRST", None)]
)
def test_nulls_stand_where_spark_has_them(exploded: str, order: str, first: int | None) -> None:
    plans = Plans(record(History((), (), (), (), 1)))
    values = "(SELECT 1 AS x UNION ALL SELECT NULL UNION ALL SELECT 2) t"
    rows = plans.run(f"SELECT x FROM {values}{exploded} ORDER BY x {order}")
    assert rows[0] == (first,)
    plans.base.close()
