"""Which methods are possible for a table, what each needs and misses, and which one a person would choose who knows them all.

A log that is there already comes first. Then a timestamp with a delete flag that an index finds. A small table is copied. Of a
large one nobody wants to read every row every minute: a timestamp without a flag where the server has never counted a deletion,
else triggers where they can be created, else ranges with checksums. What remains has its checksums compared, or is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cq_engine.grammar.clauses import CaptureMethod
from cq_engine.sources.advice import formulas
from cq_engine.sources.advice.columns import only_begins
from cq_engine.sources.advice.facts import Facts, candidates
from cq_engine.sources.advice.formulas import Cost
from cq_engine.sources.copies.servers import COPIES
from cq_engine.sources.kinds import shown_method

__all__ = ["BETWEEN", "LARGE", "SMALL", "SMALL_BYTES", "Verdict", "family", "verdicts"]

SMALL = 10_000
SMALL_BYTES = 4 * 2**20
"""A table with at most so many rows and bytes is read faster than thought about."""
LARGE = 100_000
"""A table with more rows is not to be read in one go while others write."""

BETWEEN = "the states of a row between two ticks"
_COPY_THERE = "; or, with at = 'source', besides the right to create tables, and room for a copy there: only rows that have changed are shipped"


@dataclass(frozen=True)
class Verdict:
    """A method for a table."""

    method: str
    """As it stands after USING."""
    family: str
    """What it is called in the paper."""
    why_not: str | None
    """None where it is possible."""
    needs: str
    misses: str
    cost: Cost | None = None
    recommended: bool = False

    @property
    def possible(self) -> bool:
        """Whether a capture by it can be created."""
        return self.why_not is None


def family(method: CaptureMethod) -> str:
    """The paper's name of a method: TS, TDI, ATDI, TLCS, MDS, ID, ID/RCS, VBD; and LOG, which it has not."""
    if method.kind == "TIMESTAMP":
        return "TS" if method.deleted is None else "ATDI" if method.options else "TDI"
    if method.kind == "RANGES":
        return "ID/RCS" if method.checksum else "ID"
    return {"CHECKSUM": "TLCS", "COPY": "MDS", "VIEW": "VBD"}.get(method.kind, method.kind)


def verdicts(facts: Facts) -> list[Verdict]:
    """A verdict of each method, always in the same order; one that is possible is recommended, where any is."""
    found = [
        Verdict(
            shown_method(method), family(method), _why_not(facts, method), _needs(facts, method),
            _misses(facts, method), _cost(facts, method),
        )
        for method in candidates(facts.relation, facts.timestamp, facts.flag)
    ]  # fmt: skip
    possible = {each.family for each in found if each.possible}
    chosen = next((name for name in _wishes(facts) if name in possible), None)
    return [replace(each, recommended=each.family == chosen) for each in found]


def _wishes(facts: Facts) -> Iterator[str]:
    """The paper's names of the methods, the best one first."""
    is_small = facts.rows <= SMALL and facts.table_bytes <= SMALL_BYTES
    is_likely = facts.timestamp is not None and not only_begins(facts.timestamp)
    if facts.indexed and is_likely:
        yield from ("ATDI", "TDI")
    if is_small:
        yield "MDS"
    if facts.rows > LARGE:
        if facts.indexed and is_likely and _never_deletes(facts):
            yield "TS"
        yield from ("LOG", "ID/RCS")
    yield from ("TLCS", "MDS", "VBD", "TDI", "TS", "LOG")


def _never_deletes(facts: Facts) -> bool:
    """Whether the server has counted writes, and no deletion among them."""
    known = facts.statistics
    return bool(known.written) and known.deleted == 0


def _why_not(facts: Facts, method: CaptureMethod) -> str | None:
    shown = facts.relation.shown
    if method.kind not in facts.methods:
        return f"{method.kind} is not there for sources of this type"
    if not facts.key:
        return f"{shown} has no primary key and no unique index without NULL, by which rows are known again"
    if method.kind == "TIMESTAMP" and facts.timestamp is None:
        return f"{shown} has no column that could be a timestamp of writes"
    if method.kind == "TIMESTAMP" and method.deleted is not None and facts.flag is None:
        return f"{shown} has no column that could be a delete flag"
    if method.kind == "LOG" and facts.statistics.triggers:
        return facts.statistics.triggers
    return facts.refused.get(shown_method(method))


def _needs(facts: Facts, method: CaptureMethod) -> str:
    if method.kind == "LOG":
        triggers = "the right to create triggers and a table; every write there then writes a row of the log"
        decoding = "; or, as wal_level is logical, slot = 'name': the right REPLICATION, the table as its own, and no triggers"
        return triggers + decoding if facts.statistics.decodes else triggers
    if method.kind == "VIEW":
        return "leave to run the query"
    if method.kind != "TIMESTAMP":
        return {
            "RANGES": "an index of the key, in the order that the warehouse has",
            "CHECKSUM": "leave to read the table, and its CPU for a checksum of each row",
            "COPY": "leave to read the table" + (_COPY_THERE if facts.relation.server in COPIES else ""),
        }.get(method.kind, "leave to read the table")
    column = facts.timestamp or "a timestamp"
    needs = [f"the server sets {column}" if facts.kept else f"every write sets {column}"]
    if method.deleted is not None:
        needs.append(f"rows are marked by {facts.flag or 'a delete flag'} and not removed")
    if method.options:
        wanted = dict.fromkeys([column, facts.flag or "the flag", *(c.name for c in facts.relation.columns)])
        needs.append(f"an index over {', '.join(wanted)}")
    elif not facts.indexed:
        needs.append(f"an index over {column}: there is none, and each tick reads all rows twice")
    return "; ".join(needs)


def _misses(facts: Facts, method: CaptureMethod) -> str:
    if method.kind == "LOG":
        return "nothing"
    if method.kind != "TIMESTAMP":
        return BETWEEN
    if method.deleted is not None:
        misses = ["rows that are removed and not marked"]
    else:
        misses = ["deletions, of which the server has counted none" if _never_deletes(facts) else "deletions"]
    if facts.timestamp is not None and only_begins(facts.timestamp):
        misses.append(f"updates, if only the first write of a row sets {facts.timestamp}")
    if facts.timestamp is not None and facts.relation.column(facts.timestamp).nullable:
        misses.append(f"writes that leave {facts.timestamp} NULL")
    return "; ".join([*misses, BETWEEN])


def _cost(facts: Facts, method: CaptureMethod) -> Cost | None:
    rows, changed = facts.rows, facts.changed
    if not facts.known_by or (method.kind == "TIMESTAMP" and facts.timestamp is None):
        return None
    if method.kind == "TIMESTAMP":
        return formulas.timestamp(rows, changed, indexed=facts.indexed)
    if method.kind == "CHECKSUM":
        return formulas.checksum(rows, changed)
    if method.kind == "RANGES":
        return formulas.range_checksums(rows, changed) if method.checksum else formulas.ranges(rows)
    return formulas.log(changed) if method.kind == "LOG" else formulas.copy(rows)
