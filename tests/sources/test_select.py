"""Every query on every server, against rows that are known because the test has written them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cq_engine.core.columns import Column
from cq_engine.core.errors import SourceError
from cq_engine.sources.sql import keys
from cq_engine.sources.sql import select as s
from cq_engine.sources.sql.relation import describe_query
from tests.sources.shops import TEXT, TYPES, Shop, capture, naive

COLUMNS = [
    Column("a", "bigint"), Column("Key", "string"), Column("amount", "decimal(14,3)"), Column("note", "string"),
    Column("raw", "binary"), Column("x", "double"), Column("at", "timestamp_ntz"), Column("gone", "boolean"),
]  # fmt: skip
CAPTURED = ("a", ("b ? b", "Key"), "amount", "note", "raw", "x", "at", "gone")
EPOCH = naive(2024, 5, 1)

texts = st.text(st.sampled_from("aB:-0\"'`\\%?\n é😀,"), max_size=4)
key_texts = st.text(st.sampled_from("aAbBc_%'?:-é"), max_size=3)
moments = st.integers(0, 40).map(lambda n: EPOCH + timedelta(seconds=n // 2, microseconds=500_000 * (n % 2)))
rows = st.tuples(
    st.integers(-3, 3), key_texts,
    st.none() | st.integers(-(10**8), 10**8).map(lambda n: Decimal(n).scaleb(-3)),
    st.none() | texts, st.none() | st.binary(max_size=3),
    st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32), st.none() | moments, st.none() | st.booleans(),
)  # fmt: skip
tables = st.lists(rows, max_size=9, unique_by=lambda row: (row[0], row[1].lower()))
every = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def table(shop: Shop, known: list[tuple[Any, ...]], which: str = "orders") -> str:
    """The name of a table with these rows and no other; there is one for each `which`."""
    if which not in shop.tables:
        types, name = TYPES[shop.kind], shop.fresh(which)
        shop.run(
            f"CREATE TABLE {name} (a INT NOT NULL, {shop.quoted('b % b')} {types['key']} NOT NULL,"
            f" amount DECIMAL(14,3), note {TEXT[shop.kind]}, raw {types['binary']}, x {types['double']},"
            f" at {types['moment']}, gone BOOLEAN, PRIMARY KEY (a, {shop.quoted('b % b')}))"
        )
        shop.tables[which] = name
    shop.run(f"DELETE FROM {shop.tables[which]}")
    shop.insert(shop.tables[which], known)
    return shop.tables[which]


def chosen(shop: Shop, name: str, where: str | None = None) -> s.Selection:
    columns = [("b % b", "Key") if c == ("b ? b", "Key") else c for c in CAPTURED]
    return s.selection(capture(*columns, where=where), shop.relation(name))


def in_order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return key[0], key[1].lower()


@every
@given(known=tables)
def test_the_image_and_its_ranges_are_what_was_written(shop: Shop, known: list[tuple[Any, ...]]) -> None:
    selection = chosen(shop, table(shop, known))
    assert sorted(shop.values(s.image(selection), COLUMNS), key=in_order) == sorted(known, key=in_order)
    assert selection.is_ordered is False  # letters are compared in whatever case
    ordered = [row[:2] for row in shop.rows(s.image(selection, order=True))]
    assert sorted(ordered) == sorted(row[:2] for row in known)
    with shop.database.connect() as session:
        for low, high in combinations([None, *range(len(ordered)), None], 2):
            ends = [None if n is None else keys.from_text(keys.to_text(ordered[n])) for n in (low, high)]
            found = [row[:2] for row in session.rows(s.image_between(selection, *ends))]
            first, last = 0 if low is None else low + 1, len(ordered) if high is None else high + 1
            assert found == ordered[first:last]


@every
@given(known=tables, step=st.integers(1, 4), parts=st.integers(1, 6))
def test_keys_lead_from_range_to_range(
    shop: Shop, known: list[tuple[Any, ...]], step: int, parts: int
) -> None:
    selection = chosen(shop, table(shop, known), where="a <> 1")
    ordered = [row[:2] for row in shop.rows(s.image(chosen_all(selection), order=True))]
    passed, after = [], None
    while (found := shop.rows(s.next_keys(selection, after, step))) != []:
        after = found[0]
        passed.append(after)
    assert passed == ordered[step - 1 :: step]
    with shop.database.connect() as session:
        assert s.count(session, selection) == len(known)
        assert s.count(session, selection, step) == min(step, len(known))
        ranges = s.splits(session, selection, len(known), parts)
    assert len(ranges) <= parts
    found = [row[:2] for low, high in ranges for row in shop.rows(s.image_between(selection, low, high))]
    assert found == [key for key in ordered if key[0] != 1]


def chosen_all(selection: s.Selection) -> s.Selection:
    return s.Selection(selection.relation, selection.columns, selection.key)


@every
@given(known=tables, data=st.data())
def test_rows_are_found_by_their_keys(shop: Shop, known: list[tuple[Any, ...]], data: st.DataObject) -> None:
    selection = chosen(shop, table(shop, known), where="a <> 1 -- and so on")
    wanted = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
    asked = [row[:2] for row in wanted] + [(99, "none"), (-3, "%")]
    found = shop.values(s.rows_of(selection, asked), COLUMNS)
    expected = [row for row in known if row in wanted or in_order(row) == (-3, "%")]
    assert sorted(found, key=in_order) == sorted((row for row in expected if row[0] != 1), key=in_order)
    assert shop.rows(s.rows_of(selection, [])) == []


@every
@given(known=tables, other=rows)
def test_checksums_differ_where_rows_do(
    shop: Shop, known: list[tuple[Any, ...]], other: tuple[Any, ...]
) -> None:
    """Rows are the same but for their key, which is left out: whatever is between ends of columns counts."""
    name = table(shop, known)
    narrow = s.selection(capture("a", ("b % b", "Key"), "note", "raw", "amount"), shop.relation(name))
    sums = {row[:2]: row[2] for row in shop.rows(s.keys_and_checksums(narrow))}
    assert set(sums) == {row[:2] for row in known}
    total = shop.rows(s.range_checksums(narrow, [(None, None)]))[0]
    assert total[:2] == (0, len(known))
    backwards = s.selection(
        capture("a", ("b % b", "Key"), "note", "raw", "amount"),
        shop.relation(table(shop, known[::-1], "backwards")),
    )
    assert shop.rows(s.range_checksums(backwards, [(None, None)]))[0] == total
    assert {row[:2]: row[2] for row in shop.rows(s.keys_and_checksums(backwards))} == sums
    if not known:
        return
    changed = (*known[0][:2], *other[2:])
    also = s.selection(
        capture("a", ("b % b", "Key"), "note", "raw", "amount"),
        shop.relation(table(shop, [changed, *known[1:]], "changed")),
    )
    same = changed[2:5] == known[0][2:5]
    assert (shop.rows(s.range_checksums(also, [(None, None)]))[0] == total) is same
    after = {row[:2]: row[2] for row in shop.rows(s.keys_and_checksums(also))}
    assert {key for key in sums if sums[key] != after[key]} == (set() if same else {known[0][:2]})


@every
@given(
    pairs=st.lists(
        st.tuples(st.none() | texts, st.none() | texts, st.none() | st.binary(max_size=3)),
        min_size=2,
        max_size=12,
        unique=True,
    )
)
def test_no_two_rows_have_one_checksum(shop: Shop, pairs: list[tuple[Any, ...]]) -> None:
    name = shop.fresh()
    text = TEXT[shop.kind]
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, p {text}, q VARCHAR(20), r {TYPES[shop.kind]['binary']})".replace("VARCHAR(20)", "VARCHAR(20)" + (" CHARACTER SET utf8mb4" if shop.kind == "mariadb" else "")))  # fmt: skip
    shop.insert(name, [(n, *pair) for n, pair in enumerate(pairs)])
    made = s.selection(capture("p", "q", "r"), shop.relation(name), key=["p"])
    assert len({row[1] for row in shop.rows(s.keys_and_checksums(made))}) == len(pairs)


def test_a_checksum_may_be_the_sources_own(shop: Shop) -> None:
    name = shop.fresh()
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT, crc BIGINT)")
    shop.insert(name, [(1, 5, 77), (2, 6, 78)])
    made = s.selection(capture("id", "v"), shop.relation(name))
    found = shop.values(s.keys_and_checksums(made, "CRC", (1,), None), [Column("id", "int")])
    assert found == [(2, "78")]


@every
@given(
    known=tables,
    low=st.none() | moments,
    high=st.none() | moments,
    nulls=st.booleans(),
    over=st.sampled_from([0, 3]),
)
def test_since_gives_what_was_written_between(
    shop: Shop,
    known: list[tuple[Any, ...]],
    low: datetime | None,
    high: datetime | None,
    nulls: bool,
    over: int,
) -> None:
    selection = chosen(shop, table(shop, known), where="a <> 1")
    ends = [None if end is None else shop._plain(end) for end in (low, high)]
    asked = s.since(selection, "AT", *ends, overlap=timedelta(seconds=over), deleted="gone", nulls=nulls)
    found = {row[:2]: row[-1] for row in shop.values(asked, COLUMNS)}
    expected = {}
    for row in known:
        at, out = row[6], row[0] == 1
        if at is None:
            inside = low is None or nulls
        else:
            inside = (low is None or at > low - timedelta(seconds=over)) and (high is None or at <= high)
        if inside and not (low is None and out):
            expected[row[:2]] = out or row[7] is True
    assert found == expected


def test_the_clock_and_an_overlap_of_a_counter(shop: Shop) -> None:
    name = shop.fresh()
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, version BIGINT)")
    made = s.selection(capture("id"), shop.relation(name))
    assert shop.rows(s.clock(made, "version")) == [(None,)]
    shop.insert(name, [(1, 10), (2, 20), (3, None)])
    ((high,),) = shop.rows(s.clock(made, "version"))
    assert high == 20
    found = shop.values(s.since(made, "version", 15, high, overlap=6), [Column("id", "int")])
    assert found == [(1, "[10]", False), (2, "[20]", False)]
    with pytest.raises(SourceError, match="overlap of 1:00:00 cannot be taken"):
        s.since(made, "version", 15, high, overlap=timedelta(hours=1))
    ((moment,),) = shop.values(s.now(made), [Column(s.NOW, "timestamp")])
    assert abs(moment.timestamp() - time.time()) < 60


@pytest.mark.parametrize(
    ("declared", "yes", "no"),
    [("INT", 2, 0), ("CHAR(1)", "T", "F"), ("VARCHAR(9)", " true", "deleted?"), ("DATE", "2024-01-01", None)],
)
def test_a_flag_may_be_of_many_types(shop: Shop, declared: str, yes: Any, no: Any) -> None:
    name = shop.fresh()
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, ts INT, gone {declared})")
    shop.insert(name, [(1, 1, yes), (2, 1, no), (3, 1, None)])
    made = s.selection(capture("id"), shop.relation(name))
    found = shop.values(s.since(made, "ts", deleted="gone"), [Column("id", "int")])
    assert found == [(1, "[1]", True), (2, "[1]", False), (3, "[1]", False)]


@every
@given(known=tables, data=st.data())
def test_purge_removes_marked_rows_that_nobody_has_written_since(
    shop: Shop, known: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    selection = chosen(shop, table(shop, known))
    asked = s.since(selection, "at", deleted="gone")
    seen = [(row[:2], row[-2]) for row in shop.rows(asked) if row[-2] is not None]
    given = data.draw(st.lists(st.sampled_from(seen), unique=True)) if seen else []
    touched = given[0][0] if given else None
    if touched is not None:
        later = EPOCH + timedelta(days=1)
        shop.run(
            f"UPDATE {shop.quoted(selection.relation.name)} SET at = ? WHERE a = ? AND {shop.quoted('b % b')} = ?",
            (later, *touched),
        )
    gone = {row[:2] for row in known if row[7] is True and row[:2] in {key for key, _ in given} - {touched}}
    with shop.database.write() as session:
        assert session.change(s.purge(selection, "at", "gone", given)) == len(gone)
    left = {row[:2] for row in shop.rows(s.image(selection))}
    assert left == {row[:2] for row in known} - gone


def test_a_view_is_asked_like_a_table(shop: Shop) -> None:
    name = shop.fresh()
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, cid INT, amount DECIMAL(10,2))")
    shop.insert(name, [(n, n % 4, Decimal(n)) for n in range(12)])
    query = describe_query(
        shop.database, f"SELECT cid, SUM(amount) AS Total FROM {name} WHERE '%' <> '?' GROUP BY cid -- all\n;"
    )
    view = s.selection(capture(("CID", "c"), ("total", "t"), where="cid > 0"), query, key=["c"])
    columns = [Column("c", "int"), Column("t", "decimal(12,2)")]
    assert shop.values(s.image(view, order=True), columns) == [(n, Decimal(12 + 3 * n)) for n in (1, 2, 3)]
    assert shop.values(s.image_between(view, (1,), (2,)), columns) == [(2, Decimal(18))]
    assert shop.values(s.rows_of(view, [(0,), (3,)]), columns) == [(3, Decimal(21))]
    assert len({row[1] for row in shop.rows(s.keys_and_checksums(view))}) == 3
    with pytest.raises(SourceError, match="rows of a query cannot be deleted"):
        s.purge(view, "cid", "cid", [])


@pytest.mark.parametrize("where", ["", "a = 1)", "(a = 1", "a = 1; DELETE FROM t", "a = 'open"])
def test_a_restriction_is_one_condition(shop: Shop, where: str) -> None:
    name = shop.fresh()
    shop.run(f"CREATE TABLE {name} (a INT PRIMARY KEY)")
    with pytest.raises(SourceError, match="is no condition"):
        s.selection(capture("a", where=where), shop.relation(name))


def test_what_identifies_rows_has_to_be_captured(shop: Shop) -> None:
    name = shop.fresh()
    shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, customer INT)")
    relation = shop.relation(name)
    with pytest.raises(SourceError, match="does not read id"):
        s.selection(capture("customer"), relation)
    with pytest.raises(SourceError, match="does not fill id"):
        s.selection(capture("customer"), relation, key=["id"])
    with pytest.raises(SourceError, match="has no column custmer") as error:
        s.selection(capture("custmer"), relation)
    assert error.value.hint == "did you mean customer?"
