"""Information is thrown away at random, per table and change: the view that is maintained from what is left is right."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.delta.partial.histories import QUERIES, TABLES, Writer
from tests.delta.partial.world import Row, World, apply
from tests.oracle.budget import budget


def result(world: World, number: int, rows: Mapping[str, Mapping[Row, Row]]) -> dict[Row, Row]:
    """The view computed from the tables' rows."""
    query = world.queries[number]
    with_rows = []
    for spec in TABLES:
        columns = ", ".join(f"{name} {kind}" for name, kind in spec.columns)
        world.plans.base.execute(f"CREATE OR REPLACE TEMP TABLE {spec.name} ({columns})")
        with_rows = list(rows[spec.name].values())
        if with_rows:
            marks = ", ".join("?" * len(spec.columns))
            world.plans.base.executemany(f"INSERT INTO temp.{spec.name} VALUES ({marks})", with_rows)
    compiled = world.compiled[number]
    assert compiled.key is not None
    places = [[c.name for c in compiled.columns].index(name) for name in compiled.key]
    found = world.plans.run(query)
    assert len({tuple(row[n] for n in places) for row in found}) == len(found)
    return {tuple(row[n] for n in places): row for row in found}


def _check(seed: int, partial: frozenset[str], number: int, *, compressed: bool) -> None:
    world, writer = World(TABLES, QUERIES[number : number + 1], partial), Writer(seed, partial)
    view: dict[Row, Row] = {}
    wanted: dict[int, dict[Row, Row]] = {}
    position = 0
    for version in range(1, 9):
        world.commit(writer.transaction())
        wanted[version] = result(world, 0, writer.rows)
        if writer.random.random() < 0.5 and version < 8:
            continue
        deltas = world.deltas(0, position, version, compressed=compressed)
        for at in [version] if compressed else range(position + 1, version + 1):
            for _, change in (each for each in deltas if each[0] == at):
                apply(view, change)
            assert view == wanted[at], f"at {at} of ({position}, {version}]"
        position = version


@pytest.mark.parametrize("number", range(len(QUERIES)))
@pytest.mark.parametrize("compressed", [False, True], ids=["transactional", "compressed"])
@budget("CQ_ORACLE_PLAN_EXAMPLES", 4)
@given(seed=st.integers(0, 2**32), partial=st.sets(st.sampled_from(["s", "t", "u"]), min_size=1))
def test_a_view_from_what_is_left(number: int, compressed: bool, seed: int, partial: set[str]) -> None:
    _check(seed, frozenset(partial), number, compressed=compressed)
