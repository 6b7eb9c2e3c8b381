"""Where a column comes from: through filters and plain projections down to a scan, or to a scan's changes."""

from __future__ import annotations

from sqlglot import exp

from cq_engine.algebra.nodes import VERSION, WEIGHT, Changes, Filter, KeyHint, Node, Project, Scan

__all__ = ["changes_column", "key_hints", "scan_column"]


def scan_column(node: Node, name: str) -> tuple[Scan, str] | None:
    """The scan and its column that `name` passes on unchanged."""
    if isinstance(node, Scan):
        return (node, name)
    below = _below(node, name)
    return scan_column(*below) if below else None


def changes_column(node: Node, name: str) -> tuple[Changes, str] | None:
    """The changes leaf and its column that `name` passes on unchanged."""
    if isinstance(node, Changes):
        return (node, name) if name not in (VERSION, WEIGHT) else None
    below = _below(node, name)
    return changes_column(*below) if below else None


def _below(node: Node, name: str) -> tuple[Node, str] | None:
    if isinstance(node, Filter):
        return node.input, name
    if isinstance(node, Project):
        expression = dict(node.items)[name].unnest()
        return (node.input, expression.name) if isinstance(expression, exp.Column) else None
    return None


def key_hints(
    node: Node, keys: tuple[exp.Expr, ...], changes: Node, changed_keys: tuple[exp.Expr, ...]
) -> dict[int, tuple[KeyHint, ...]]:
    """The hint that of `node` only rows are needed whose key has a value that `changed_keys` have in `changes`.

    Empty where no pair of keys are plain columns of one scan and of one table's changes. The hint is right only where
    all affected keys come from `changes`: an operator with two changed inputs must not use it.
    """
    for key, changed_key in zip(keys, changed_keys):
        bare, other = key.unnest(), changed_key.unnest()
        if not isinstance(bare, exp.Column) or not isinstance(other, exp.Column):
            continue
        source, changed = scan_column(node, bare.name), changes_column(changes, other.name)
        if source and changed:
            return {id(source[0]): (KeyHint(source[1], changed[0], changed[1]),)}
    return {}
