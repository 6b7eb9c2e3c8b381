"""What ADVISE CAPTURE makes of what it knows: columns, recommendations and formulas, without a server."""

from __future__ import annotations

import dataclasses

import pytest

from cq_engine.sources.advice import formulas
from cq_engine.sources.advice.columns import flag_of, key_of, timestamps_of
from cq_engine.sources.advice.facts import Facts
from cq_engine.sources.advice.statistics import Statistics
from cq_engine.sources.advice.verdicts import verdicts
from cq_engine.sources.sql.model import Index, Relation, SourceColumn


def relation(*columns: str, server: str = "postgresql", indexed: str = "") -> Relation:
    """A relation with the key `id`; columns are `name type`, with `!` where they are never NULL."""
    split = [column.split() for column in columns]
    made = [
        SourceColumn(name, "", kind.rstrip("!"), not kind.endswith("!"), None, True) for name, kind in split
    ]
    key = SourceColumn("id", "", "int", False, None, True)
    indexes = [Index("primary key", ("id",), True)] + [
        Index(f"i_{name}", (name,)) for name in indexed.split()
    ]
    return Relation(server, "postgres", "r", (key, *made), "s", ("id",), tuple(indexes))


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (["made_on timestamp", "last_modified timestamp"], "last_modified"),
        (["created_at timestamp", "at timestamp"], "at"),
        (["created_at timestamp"], "created_at"),
        (["LastUpdatedAt timestamp_ntz", "shipped timestamp"], "LastUpdatedAt"),
        (["updated_by int", "update_count int"], None),
        (["rowversion bigint"], "rowversion"),
        (["updated string"], None),
        (["deleted_at timestamp"], None),
        (["born date"], None),
        (["modified date"], "modified"),
    ],
)
def test_what_can_be_a_timestamp(columns: list[str], wanted: str | None) -> None:
    found = timestamps_of(relation(*columns))
    assert (found[0].name if found else None) == wanted


def test_types_and_indexes_decide_between_timestamps() -> None:
    assert timestamps_of(relation("a timestamp", "b timestamp", indexed="b"))[0].name == "b"
    assert timestamps_of(relation("updated_at timestamp", "b timestamp"), kept=["b"])[0].name == "b"
    assert timestamps_of(relation("updated bigint", "changed timestamp"))[0].name == "changed"
    assert timestamps_of(relation("updated string", server="sqlite"))[0].name == "updated"


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (["paid boolean", "is_deleted boolean"], "is_deleted"),
        (["paid boolean"], None),
        (["IsDeleted boolean"], "IsDeleted"),
        (["deleted_at timestamp"], "deleted_at"),
        (["deleted_at timestamp!"], None),
        (["deleted_by int"], None),
        (["del_flag string"], "del_flag"),
        (["deleted_at string"], None),
    ],
)
def test_what_can_be_a_flag(columns: list[str], wanted: str | None) -> None:
    found = flag_of(relation(*columns))
    assert (found.name if found else None) == wanted


def test_a_key_is_unique_and_never_null() -> None:
    keyless = dataclasses.replace(relation("a int!", "b int"), key=(), indexes=())
    assert key_of(keyless) == ()
    assert key_of(dataclasses.replace(keyless, indexes=(Index("u", ("b",), True), Index("p", ("a",))))) == ()
    assert key_of(dataclasses.replace(keyless, indexes=(Index("u", ("a",), True),))) == ("a",)


SQL = ("TIMESTAMP", "CHECKSUM", "COPY", "RANGES", "VIEW")
FLAGGED = relation("updated_at timestamp", "gone boolean", indexed="updated_at")
KNOWN = Facts(FLAGGED, ("id",), 50_000, 100.0, 500.0, "", "updated_at", "gone", methods=SQL)
NO_FLAG = dataclasses.replace(KNOWN, flag=None)
COVERING = "TIMESTAMP (updated_at, DELETED gone) WITH (index = 'covering')"
NEVER = Statistics(written=9, deleted=0, triggers="")


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (KNOWN, COVERING),
        (dataclasses.replace(KNOWN, refused={COVERING: "no index"}), "TIMESTAMP (updated_at, DELETED gone)"),
        (dataclasses.replace(KNOWN, relation=relation("updated_at timestamp", "gone boolean")), "CHECKSUM"),
        (NO_FLAG, "CHECKSUM"),
        (dataclasses.replace(NO_FLAG, rows=5000), "COPY"),
        (dataclasses.replace(NO_FLAG, rows=5000, row_bytes=10_000.0), "CHECKSUM"),
        (dataclasses.replace(NO_FLAG, rows=10**6), "RANGES (rows = '1000', CHECKSUM)"),
        (
            dataclasses.replace(NO_FLAG, rows=10**6, refused={"RANGES (rows = '1000', CHECKSUM)": "?"}),
            "CHECKSUM",
        ),
        (dataclasses.replace(NO_FLAG, rows=10**6, statistics=NEVER), "TIMESTAMP (updated_at)"),
        (
            dataclasses.replace(NO_FLAG, rows=10**6, statistics=dataclasses.replace(NEVER, deleted=1)),
            "RANGES (rows = '1000', CHECKSUM)",
        ),
        (
            dataclasses.replace(
                NO_FLAG, rows=10**6, methods=(*SQL, "LOG"), statistics=Statistics(triggers="")
            ),
            "LOG WITH (install = 'true')",
        ),
        (
            dataclasses.replace(NO_FLAG, rows=10**6, methods=(*SQL, "LOG")),
            "RANGES (rows = '1000', CHECKSUM)",
        ),
        (dataclasses.replace(KNOWN, methods=(*SQL, "LOG"), statistics=Statistics(triggers="")), COVERING),
        (dataclasses.replace(NO_FLAG, refused={"CHECKSUM": "it cannot"}), "COPY"),
        (dataclasses.replace(KNOWN, key=()), None),
    ],
)
def test_what_is_recommended(facts: Facts, wanted: str | None) -> None:
    found = verdicts(facts)
    assert [each.method for each in found if each.recommended] == ([] if wanted is None else [wanted])
    assert all(each.possible for each in found if each.recommended)
    if wanted == "TIMESTAMP (updated_at)":
        assert "deletions, of which the server has counted none" in found[0].misses


def test_the_formulas_of_the_paper() -> None:
    """The defaults of its Table 2: a change of 1 % between two scans."""
    assert formulas.timestamp(10_000, 100, indexed=True) == formulas.Cost(200, 200)
    assert formulas.timestamp(10_000, 100, indexed=False).read == 20_000
    assert formulas.checksum(10_000, 100) == formulas.Cost(10_100, 10_100)
    assert formulas.range_checksums(10_000, 0) == formulas.Cost(10_000, 10)
    assert formulas.range_checksums(10_000_000, 10).shipped == pytest.approx(20_000, rel=0.01)
    assert formulas.changed_ranges(10, 10**9) == pytest.approx(10)
