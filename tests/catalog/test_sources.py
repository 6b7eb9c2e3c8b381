"""Sources, captures and where captures stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from cq_engine.catalog.apply import alter_table, create_table, drop_table
from cq_engine.catalog.model import Capture, CaptureStatus, CatalogState, DeclaredSource
from cq_engine.catalog.sources import (
    captures_into,
    captures_of,
    drop_capture,
    drop_source,
    find_capture,
    find_source,
    put_capture,
    put_source,
)
from cq_engine.catalog.store import Catalog
from cq_engine.core import calls, faults
from cq_engine.core.errors import CatalogError, ConflictError, CQError
from cq_engine.grammar.clauses import CapturedColumn, CaptureMethod, ColumnSpec, OnDemand
from cq_engine.grammar.statements import AlterTable, CreateTable, DropTable

Open = Callable[..., Catalog]

SHOP = DeclaredSource("Shop", "sqlite", (("url", "${SHOP}"),))
CAPTURE = Capture("In_Orders", "shop", "orders", CaptureMethod("LOG"), OnDemand(), "public.orders")
STATUS = CaptureStatus('{"lsn": 7}', 0, "FAILED", "no route", 3, 12, 1)
POINTS = {"catalog.begin": False, "catalog.before_commit": False, "catalog.after_commit": True}


def tables(*names: str) -> CatalogState:
    state = CatalogState()
    for name in names:
        state = create_table(state, CreateTable(name, (ColumnSpec("k", "int"), ColumnSpec("v", "int"))), 1)
    return state


def captured() -> CatalogState:
    return put_capture(put_source(tables("Orders", "other"), SHOP), CAPTURE)


def said(error: CQError) -> tuple[str, str]:
    return error.message, error.hint


class TestState:
    def test_names_are_kept_and_found_without_case(self) -> None:
        state = captured()
        assert find_source(state, "SHOP") is SHOP
        assert find_capture(state, "in_ORDERS") is CAPTURE
        assert captures_of(state, "SHOP") == captures_into(state, "ORDERS") == [CAPTURE]
        assert captures_of(state, "other") == captures_into(state, "other") == []

    def test_what_is_not_there(self) -> None:
        state = captured()
        with pytest.raises(CatalogError) as caught:
            find_source(state, "shp")
        assert said(caught.value) == ("there is no source shp", "did you mean Shop?")
        with pytest.raises(CatalogError) as caught:
            find_capture(state, "in_order")
        assert said(caught.value) == ("there is no capture in_order", "did you mean In_Orders?")
        with pytest.raises(CatalogError, match="there is no source x"):
            drop_source(state, "x")
        with pytest.raises(CatalogError) as caught:
            drop_capture(CatalogState(), "x")
        assert said(caught.value) == ("there is no capture x", "SHOW CAPTURES lists them")

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"source": "nowhere"}, "there is no source nowhere"),
            ({"table": "ordrs"}, "did you mean Orders"),
            ({"name": "second"}, "capture In_Orders fills table Orders already"),
            ({"columns": (CapturedColumn("a", "kk"),)}, "table Orders has no column kk"),
            (
                {"columns": (CapturedColumn("a", "k"), CapturedColumn("b", "K"))},
                "capture In_Orders fills column K of Orders twice",
            ),
        ],
    )
    def test_a_capture_that_cannot_be(self, changed: dict[str, Any], message: str) -> None:
        with pytest.raises(CatalogError) as caught:
            put_capture(captured(), replace(CAPTURE, **changed))
        assert message in str(caught.value)
        assert caught.value.hint

    def test_both_can_be_changed(self) -> None:
        state = put_source(captured(), replace(SHOP, name="SHOP", options=()))
        state = put_capture(state, replace(CAPTURE, table="other", options=(("initial", "none"),)))
        assert find_source(state, "shop").options == ()
        assert captures_into(state, "Orders") == []
        assert put_capture(state, replace(CAPTURE, name="second")).captures.keys() == {"in_orders", "second"}

    def test_a_source_in_use(self) -> None:
        state = captured()
        with pytest.raises(CatalogError) as caught:
            drop_source(state, "shop")
        assert said(caught.value) == ("source Shop is in use", "drop those first, or say CASCADE")
        assert caught.value.detail == "by capture In_Orders"
        dropped = drop_source(state, "shop", cascade=True)
        assert (dropped.sources, dropped.captures) == ({}, {})
        assert dropped.tables == state.tables
        assert drop_source(drop_capture(state, "in_orders"), "shop").sources == {}

    def test_the_table_of_a_capture(self) -> None:
        state = captured()
        with pytest.raises(CatalogError) as caught:
            drop_table(state, DropTable("orders"))
        assert said(caught.value) == ("table Orders is in use", "drop those first, or say CASCADE")
        assert caught.value.detail == "by capture In_Orders, which fills it"
        dropped = drop_table(state, DropTable("orders", cascade=True))
        assert (list(dropped.tables), dropped.captures) == (["other"], {})
        assert dropped.sources == state.sources
        renamed = alter_table(state, AlterTable("orders", "RENAME", new_name="Bought"))
        assert captures_into(renamed, "bought") == [replace(CAPTURE, table="Bought")]
        added = alter_table(state, AlterTable("orders", "ADD COLUMNS", (ColumnSpec("n", "int"),)))
        assert added.captures == state.captures


@pytest.fixture
def defined(catalog: Catalog) -> Catalog:
    """With a source and a capture."""
    with catalog.write() as unit:
        unit.set_state(put_capture(put_source(catalog.state, SHOP), CAPTURE))
    return catalog


def tick(catalog: Catalog, sample: Any, after: CaptureStatus, **changed: Any) -> CaptureStatus:
    """A commit with the status of the capture that has made it."""
    with catalog.lock, catalog.write() as unit:
        version = catalog.newest_version + 1
        unit.add_commit(version, sample.when(version))
        unit.add_changes(sample.orders, version, version, sample.rows(version, [version]))
        moved = replace(after, version=version, last=sample.when(version), **changed)
        unit.set_capture("IN_orders", moved, after=after)
    return catalog.capture_status("in_orders")


def write(catalog: Catalog, state: CatalogState, status: CaptureStatus) -> None:
    """Definitions with a status."""
    with catalog.write() as unit:
        unit.set_state(state)
        unit.set_capture("in_orders", status)


class TestStatus:
    def test_a_new_capture_stands_at_the_beginning(self, defined: Catalog) -> None:
        assert defined.capture_status("IN_ORDERS") == CaptureStatus()
        with pytest.raises(CatalogError, match="there is no capture x"):
            defined.capture_status("x")
        with pytest.raises(CatalogError, match="there is no capture x"), defined.write() as unit:
            unit.set_capture("x", CaptureStatus())

    def test_its_first_status_may_be_said_with_it(self, catalog: Catalog) -> None:
        with catalog.write() as unit:
            unit.set_state(put_capture(put_source(catalog.state, SHOP), CAPTURE))
            unit.set_capture(CAPTURE.name, CaptureStatus(state="PAUSED"))
        assert catalog.capture_status("in_orders") == CaptureStatus(state="PAUSED")

    def test_every_field_is_stored(self, defined: Catalog, open_catalog: Open, sample: Any) -> None:
        other = open_catalog(duties=False)
        reader = open_catalog(read_only=True)
        status = tick(defined, sample, STATUS)
        assert status == replace(STATUS, ticks=1, version=1, last=sample.when(1))
        assert [f.name for f in fields(status) if getattr(status, f.name) == f.default] == []
        other.follow()
        assert reader.capture_status("in_orders") == other.capture_status("In_Orders") == status
        assert reader.state == defined.state
        defined.close()
        again = open_catalog()
        assert again.capture_status("in_orders") == status
        assert (again.state.sources, again.state.captures) == ({"shop": SHOP}, {"in_orders": CAPTURE})

    def test_no_tick_is_counted_twice(self, defined: Catalog, open_catalog: Open, sample: Any) -> None:
        other = open_catalog(duties=False)
        before = other.capture_status("in_orders")
        first = tick(defined, sample, before, rows=1)
        assert first.ticks == 1
        with (
            pytest.raises(ConflictError, match="the status of capture in_orders is not what"),
            other.write(by_any=True) as unit,
        ):
            unit.set_capture("in_orders", replace(before, rows=1), after=before)
        assert other.capture_status("in_orders") == first
        second = tick(defined, sample, first, ticks=2)
        assert second.ticks == 2
        with defined.write() as unit:
            unit.set_capture("in_orders", replace(second, state="PAUSED"))
        assert defined.capture_status("in_orders") == replace(second, state="PAUSED", ticks=3)

    def test_a_change_of_the_capture_leaves_its_status(self, defined: Catalog, sample: Any) -> None:
        status = tick(defined, sample, CaptureStatus())
        with defined.write() as unit:
            unit.set_state(put_capture(defined.state, replace(CAPTURE, options=(("a", "b"),))))
        assert defined.capture_status("in_orders") == status

    def test_a_new_one_of_the_same_name_begins_anew(
        self, defined: Catalog, open_catalog: Open, sample: Any
    ) -> None:
        reader = open_catalog(read_only=True)
        status = tick(defined, sample, CaptureStatus())
        dropped = drop_source(defined.state, "shop", cascade=True)
        with pytest.raises(CatalogError, match="no capture in_orders"):
            write(defined, dropped, status)
        with defined.write() as unit:
            unit.set_state(drop_source(defined.state, "shop", cascade=True))
        assert defined.view.captures == reader.view.captures == {}
        with defined.write() as unit:
            unit.set_state(put_capture(put_source(defined.state, SHOP), CAPTURE))
        assert reader.capture_status("in_orders") == CaptureStatus()
        with pytest.raises(ConflictError, match="the status of capture in_orders"):
            tick(defined, sample, status)
        assert defined.newest_version == 1

    @pytest.mark.parametrize("point", POINTS)
    def test_the_commit_and_the_status_are_there_together(
        self, defined: Catalog, open_catalog: Open, sample: Any, point: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(name: str, *_: object) -> None:
            if name == point:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(faults, "point", stop)
            with pytest.raises(KeyboardInterrupt):
                tick(defined, sample, CaptureStatus())
        durable = POINTS[point]
        for each in (defined, open_catalog(read_only=True)):
            assert each.newest_version == int(durable)
            status = each.capture_status("in_orders")
            assert (status.ticks, status.version) == (int(durable), int(durable))

    def test_ctrl_c_says_what_was_defined(self, catalog: Catalog) -> None:
        with calls.call() as call, catalog.write() as unit:
            unit.set_state(put_capture(put_source(catalog.state, SHOP), CAPTURE))
        assert call.durable.words() == ("source Shop is created", "capture In_Orders is created")
