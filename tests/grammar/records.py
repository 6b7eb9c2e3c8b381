"""What tests of statements share."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

__all__ = ["HEAD", "only_plain_text"]

HEAD = "CREATE CONTINUOUS QUERY q "


def only_plain_text(value: object) -> bool:
    """Whether no token of the parser has found its way into the record."""
    if is_dataclass(value):
        return all(only_plain_text(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return all(map(only_plain_text, value))
    return value is None or type(value) in (str, int, bool)
