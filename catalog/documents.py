"""Definitions as JSON documents, there and back. Every field is named here, so that a stored document outlives a
renamed attribute: a query's group is stored as its `template`, as groups were called first, and so is the option."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cq_engine.catalog.groups import query_options
from cq_engine.catalog.model import (
    ContinuousQuery,
    DataFile,
    ForeignKey,
    OutputColumn,
    QueryGroup,
    SqlFunction,
    Table,
    VersionedTable,
)
from cq_engine.core.columns import Column
from cq_engine.core.errors import CatalogError
from cq_engine.grammar.statements import (
    Cron,
    DestinationRef,
    EveryInterval,
    OnCommit,
    OnDemand,
    OnDml,
    StartWithPeriod,
    When,
)

__all__ = [
    "files_from_text",
    "files_to_text",
    "function_from_text",
    "function_to_text",
    "group_from_text",
    "group_to_text",
    "query_from_text",
    "query_to_text",
    "table_from_text",
    "table_to_text",
]

Document = dict[str, Any]
FOREVER = 2**63 - 1


def table_to_text(table: Table) -> str:
    """A base table's definition as JSON text."""
    return _text(_table(table))


def table_from_text(text: str) -> Table:
    return _read_table(json.loads(text))


def _table(table: Table) -> Document:
    return {
        "name": table.name,
        "storage": _versioned_table(table.storage),
        "primary_key": None if table.primary_key is None else list(table.primary_key),
        "primary_key_enforced": table.primary_key_enforced,
        "foreign_keys": [_foreign_key(key) for key in table.foreign_keys],
        "options": _pairs(table.options),
        "created_version": table.created_version,
        "created_by": table.created_by,
    }


def _read_table(found: Document) -> Table:
    return Table(
        name=found["name"],
        storage=_read_versioned(found["storage"]),
        primary_key=_optional(found["primary_key"]),
        primary_key_enforced=found["primary_key_enforced"],
        foreign_keys=tuple(_read_foreign_key(key) for key in found["foreign_keys"]),
        options=_read_pairs(found["options"]),
        created_version=found["created_version"],
        created_by=found["created_by"],
    )


def query_to_text(query: ContinuousQuery) -> str:
    """A continuous query's definition as JSON text."""
    return _text(_query(query))


def query_from_text(text: str) -> ContinuousQuery:
    return _read_query(json.loads(text))


def _query(query: ContinuousQuery) -> Document:
    return {
        "name": query.name,
        "id": query.id,
        "statement": query.statement,
        "query": query.query,
        "result": _versioned_table(query.result),
        "key": None if query.key is None else list(query.key),
        "mode": query.mode,
        "markers": list(query.markers),
        "when": _when(query.when),
        "destinations": [{"name": d.name, "kind": d.kind} for d in query.destinations],
        "options": _pairs(query.options),
        "sources": list(query.sources),
        "states": [[label, _versioned_table(state)] for label, state in query.states],
        "session": _pairs(query.session),
        "verdict": query.verdict,
        "reasons": list(query.reasons),
        "created_version": query.created_version,
        "outputs": [
            {"name": o.name, "type": o.type, "kind": o.kind, "index": o.index} for o in query.outputs
        ],
        "width": query.width,
        "source_columns": [[name, list(columns)] for name, columns in query.source_columns],
        "declared": query.declared,
        "key_checked": query.key_checked,
        "functions": list(query.functions),
        "relation": None if query.relation is None else _table(query.relation),
        "template": query.group,
        "constants": list(query.constants),
    }


def _read_query(found: Document) -> ContinuousQuery:
    return ContinuousQuery(
        name=found["name"],
        id=found["id"],
        statement=found["statement"],
        query=found["query"],
        result=_read_versioned(found["result"]),
        key=_optional(found["key"]),
        mode=found["mode"],
        markers=tuple(found["markers"]),
        when=_read_when(found["when"]),
        destinations=tuple(DestinationRef(d["name"], d["kind"]) for d in found["destinations"]),
        options=query_options(_read_pairs(found["options"])),
        sources=tuple(found["sources"]),
        states=tuple((label, _read_versioned(state)) for label, state in found["states"]),
        session=_read_pairs(found["session"]),
        verdict=found["verdict"],
        reasons=tuple(found["reasons"]),
        created_version=found["created_version"],
        outputs=tuple(
            OutputColumn(o["name"], o["type"], o["kind"], o["index"]) for o in found.get("outputs", ())
        ),
        width=found.get("width", 0),
        source_columns=tuple((name, tuple(columns)) for name, columns in found["source_columns"]),
        declared=found["declared"],
        key_checked=found["key_checked"],
        functions=tuple(found["functions"]),
        relation=None if found["relation"] is None else _read_table(found["relation"]),
        group=found.get("template"),
        constants=tuple(found.get("constants", ())),
    )


def group_to_text(group: QueryGroup) -> str:
    """A query group as JSON text."""
    return _text(
        {
            "query": _query(group.query),
            "pattern": _query(group.pattern),
            "constants": _table(group.constants),
            "places": list(group.places),
            "ready": group.ready,
        }
    )


def group_from_text(text: str) -> QueryGroup:
    found = json.loads(text)
    return QueryGroup(
        query=_read_query(found["query"]),
        pattern=_read_query(found["pattern"]),
        constants=_read_table(found["constants"]),
        places=tuple(found["places"]),
        ready=found["ready"],
    )


def function_to_text(function: SqlFunction) -> str:
    """A SQL function's definition as JSON text."""
    return _text(
        {
            "name": function.name,
            "definition": function.definition,
            "deterministic": function.deterministic,
            "uses": list(function.uses),
        }
    )


def function_from_text(text: str) -> SqlFunction:
    found = json.loads(text)
    return SqlFunction(found["name"], found["definition"], found["deterministic"], tuple(found["uses"]))


def files_to_text(files: Iterable[DataFile]) -> str:
    """Data files as JSON text. Their statistics are JSON values already (catalog/tables.py)."""
    return _text(
        [
            {
                "path": f.path,
                "rows": f.rows,
                "bytes": f.bytes,
                "stats": {k: list(v) for k, v in f.stats.items()},
            }
            for f in files
        ]
    )


def files_from_text(text: str) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(f["path"], f["rows"], f["bytes"], {k: (v[0], v[1]) for k, v in f["stats"].items()})
        for f in json.loads(text)
    )


# ---------------------------------------------------------------- parts


def _versioned_table(table: VersionedTable) -> Document:
    return {
        "id": table.id,
        "kind": table.kind,
        "name": table.name,
        "columns": [
            {"name": c.name, "type": c.type, "nullable": c.nullable, "comment": c.comment}
            for c in table.columns
        ],
        "identity": list(table.identity),
        "cluster_by": list(table.cluster_by),
        "part": table.part,
    }


def _read_versioned(found: Document) -> VersionedTable:
    return VersionedTable(
        id=found["id"],
        kind=found["kind"],
        name=found["name"],
        columns=tuple(Column(c["name"], c["type"], c["nullable"], c["comment"]) for c in found["columns"]),
        identity=tuple(found["identity"]),
        cluster_by=tuple(found["cluster_by"]),
        part=found.get("part"),
    )


def _foreign_key(key: ForeignKey) -> Document:
    return {
        "name": key.name,
        "columns": list(key.columns),
        "references": key.references,
        "ref_columns": list(key.ref_columns),
        "enforced": key.enforced,
        "rely": key.rely,
        "since": key.since,
    }


def _read_foreign_key(found: Document) -> ForeignKey:
    return ForeignKey(
        name=found["name"],
        columns=tuple(found["columns"]),
        references=found["references"],
        ref_columns=tuple(found["ref_columns"]),
        enforced=found["enforced"],
        rely=found["rely"],
        since=found.get("since", FOREVER),  # of a warehouse from before it was noted: nothing rests on it
    )


def _when(when: When) -> Document:
    if isinstance(when, EveryInterval):
        return {"kind": "every", "count": when.count, "unit": when.unit}
    if isinstance(when, StartWithPeriod):
        return {"kind": "start", "start": when.start, "count": when.count, "unit": when.unit}
    if isinstance(when, Cron):
        return {"kind": "cron", "expression": when.expression}
    if isinstance(when, OnDml):
        return {"kind": "dml", "events": list(when.events), "tables": list(when.tables)}
    return {"kind": "demand"} if isinstance(when, OnDemand) else {"kind": "commit"}


_WHEN: Mapping[str, Callable[[Document], When]] = {
    "commit": lambda _: OnCommit(),
    "demand": lambda _: OnDemand(),
    "every": lambda d: EveryInterval(d["count"], d["unit"]),
    "start": lambda d: StartWithPeriod(d["start"], d["count"], d["unit"]),
    "cron": lambda d: Cron(d["expression"]),
    "dml": lambda d: OnDml(tuple(d["events"]), tuple(d["tables"])),
}


def _read_when(found: Document) -> When:
    read = _WHEN.get(found["kind"])
    if read is None:
        raise CatalogError(f"the catalog holds an unknown schedule {found['kind']!r}")
    return read(found)


def _pairs(pairs: tuple[tuple[str, str], ...]) -> list[list[str]]:
    return [[name, value] for name, value in pairs]


def _read_pairs(found: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in found)


def _optional(found: list[str] | None) -> tuple[str, ...] | None:
    return None if found is None else tuple(found)


def _text(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
