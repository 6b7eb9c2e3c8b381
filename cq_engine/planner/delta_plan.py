"""The delta plan of one refresh: Spark SQL for each stored aggregate that changes, then for the delta log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import pyarrow as pa

from cq_engine.algebra.emit import Emitter, quote
from cq_engine.algebra.nodes import (
    FROM,
    TO,
    Aggregate,
    Changes,
    Empty,
    Given,
    History,
    Node,
    StateRows,
    inner_first,
)
from cq_engine.core.columns import Column
from cq_engine.delta.context import Context, delta, has_changes
from cq_engine.delta.rules import RULES
from cq_engine.delta.stored import HIT, accumulator_versions, repaired_versions
from cq_engine.evaluation.statements import log_rows, plain_rows
from cq_engine.evaluation.vectors import Rows
from cq_engine.planner.compiled import KEY_STATE, Compiled, StoredAggregate
from cq_engine.planner.consolidate import consolidate

__all__ = ["DeltaPlan", "Stage", "Statement", "Text", "log_statement", "plan_delta"]

Text = Callable[[Callable[[Node], str], Callable[[Emitter], None]], str]
"""Gives a statement's text from the relations of its leaves, as `DeltaPlan.sql` does."""


@dataclass(frozen=True)
class Statement:
    """One of a plan's statements, for Spark and for the driver: `evaluate` gives the rows that Spark gives for `text`.

    It takes what gives the rows of a leaf, and how many rows an operator may give at most, and raises UnsupportedError
    and TooLargeError (`evaluation.vectors`).
    """

    name: str
    root: Node
    text: Text
    evaluate: Callable[[Callable[[Node], Rows], int], pa.Table]

    @cached_property
    def leaves(self) -> tuple[Node, ...]:
        """The leaves that have rows."""
        return tuple(node for node in inner_first(self.root) if isinstance(node, _LEAVES))


_LEAVES = (Changes, History, StateRows, Given)


@dataclass(frozen=True)
class Stage:
    """The versions of a stored aggregate's affected groups, to be materialised as the relation `node`.

    They are read twice, for the state's new rows and for what stands above the aggregate. Columns: the state's, then
    `_from` and `_to`. Where `watched`, the statement gives `_hit`, too: the groups in which it is 1 are put into the
    relation `hit` (their keys), and their rows are those of `repair_sql`.
    """

    stored: StoredAggregate
    node: Given
    root: Node
    hit: Given | None = None
    repair: Node | None = None

    @property
    def watched(self) -> bool:
        return self.hit is not None

    @property
    def statement(self) -> Statement:
        """What gives the versions."""
        hit = (Column(HIT, "int"),) if self.watched else ()
        evaluate = partial(plain_rows, self.root, (*self._typed, *hit))
        return Statement(f"stage {self.stored.state.label}", self.root, self.sql, evaluate)

    @property
    def repair_statement(self) -> Statement:
        """What gives those of the groups in `hit`."""
        assert self.repair is not None
        evaluate = partial(plain_rows, self.repair, self._typed)
        return Statement(f"repair {self.stored.state.label}", self.repair, self.repair_sql, evaluate)

    @property
    def _typed(self) -> tuple[Column, ...]:
        return (*self.stored.columns, Column(FROM, "bigint"), Column(TO, "bigint"))

    def sql(self, leaves: Callable[[Node], str], attach: Callable[[Emitter], None]) -> str:
        """The statement; rows that only say how a group was before the interval are kept, they are old values."""
        return self._select(self.root, (*self.columns, HIT) if self.watched else self.columns, leaves, attach)

    def repair_sql(self, leaves: Callable[[Node], str], attach: Callable[[Emitter], None]) -> str:
        """The statement for the groups in `hit`."""
        assert self.repair is not None
        return self._select(self.repair, self.columns, leaves, attach)

    def _select(
        self,
        root: Node,
        names: Sequence[str],
        leaves: Callable[[Node], str],
        attach: Callable[[Emitter], None],
    ) -> str:
        shown = [f"{quote(a)} AS {quote(b)}" for a, b in zip(root.columns, names)]
        return _statement(root, leaves, attach, f"SELECT {', '.join(shown)} FROM {{0}}")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(c.name for c in self.stored.columns), FROM, TO)


@dataclass(frozen=True)
class DeltaPlan:
    """`stages` in order, then `sql`: the delta log's rows with `_sequence` and `_duplicate`."""

    compiled: Compiled
    stages: tuple[Stage, ...]
    root: Node

    @cached_property
    def leaves(self) -> int:
        """How many relations the statements read, each as often as it is a leaf of its own."""
        nodes = inner_first(*(stage.root for stage in self.stages), self.root)
        return sum(isinstance(node, _LEAVES) for node in nodes)

    @property
    def statement(self) -> Statement:
        """What gives the delta log's rows."""
        compiled = self.compiled
        evaluate = partial(log_rows, self.root, compiled.outputs, compiled.columns, compiled.key_outputs)
        return Statement("log", self.root, self.sql, evaluate)

    def numbered_in(self, parts: int) -> Statement:
        """`statement`, whose rows are numbered in so many parts of a version (`delta.numbering`)."""
        return replace(self.statement, text=partial(self.sql, parts=parts))

    def sql(self, leaves: Callable[[Node], str], attach: Callable[[Emitter], None], parts: int = 1) -> str:
        """The statement that gives the delta log's rows."""
        compiled = self.compiled
        types = [c.type for c in compiled.columns]
        rows = consolidate("{0}", compiled.outputs, compiled.key_outputs, types, parts)
        return log_statement(compiled, self.root, rows, leaves, attach)


def log_statement(
    compiled: Compiled,
    root: Node,
    rows: str,
    leaves: Callable[[Node], str],
    attach: Callable[[Emitter], None],
) -> str:
    """The statement for a delta log's rows under their own names, from SQL for them under those of the plan, which reads
    `root` as `{0}`."""
    shown = [f"{quote(o)} AS {quote(c.name)}" for o, c in zip(compiled.outputs, compiled.columns)]
    text = f"SELECT {', '.join(shown)}, _change_type, _commit_version, _sequence, _duplicate FROM ({rows})"
    return _statement(root, leaves, attach, text)


def _statement(
    root: Node, leaves: Callable[[Node], str], attach: Callable[[Emitter], None], text: str
) -> str:
    emitter = Emitter(leaves)
    attach(emitter)
    return emitter.statement(text, root)


def plan_delta(
    compiled: Compiled, changed: frozenset[str], insert_only: bool, *, at_once: bool = False
) -> DeltaPlan | None:
    """The plan for an interval in which the tables `changed` have changes; None where the result cannot change.

    `at_once`: with as few leaves as possible, for rows that the driver has (`delta.join`).
    """
    assert compiled.node is not None
    stored = {id(each.node): each.state for each in compiled.states}
    context = Context(RULES, compiled.names, changed, stored, insert_only, at_once)
    stages = [_stage(each, context) for each in compiled.stored if has_changes(each.node, context)]
    root = delta(compiled.node, context)
    if isinstance(root, Empty) and not stages:
        return None
    if compiled.key_count is not None:
        stages.append(_stage(compiled.key_count, context))
    return DeltaPlan(compiled, tuple(stages), root)


def _stage(stored: StoredAggregate, context: Context) -> Stage:
    """Plans the aggregate's versions, and puts a leaf for them in the place where everything above finds them."""
    node: Aggregate = stored.node
    root = accumulator_versions(node, context)
    shown = tuple(name for name in root.columns if name != HIT)
    given = Given(f"block_{stored.state.label}", shown)
    context.accumulated[id(node)] = given
    context.kept.append(given)
    if shown == root.columns:
        return Stage(stored, given, root)
    keys = tuple(context.names.fresh("k") for _ in node.keys)
    hit = Given(f"hit_{stored.state.label}", keys)
    return Stage(stored, given, root, hit, repaired_versions(node, hit, context))


def is_key_count(stage: Stage) -> bool:
    """True for the count of result rows per declared key."""
    return stage.stored.state.label == KEY_STATE
