"""The rules of cq.lark about destinations that are declared by themselves."""

from __future__ import annotations

from typing import Any

from lark import Token, v_args

from cq_engine.grammar import statements
from cq_engine.grammar.rules import Rules


@v_args(inline=True)
class DestinationRules(Rules):
    """CREATE, ALTER and DROP DESTINATION; `pause` is that of queries."""

    def create_destination(
        self, if_not_exists: bool | None, name: Token, kind: Token, options: statements.Options | None
    ) -> statements.CreateDestination:
        return statements.CreateDestination(str(name), kind.upper(), options or (), bool(if_not_exists))

    def resume_delivery(self) -> dict[str, Any]:
        return {"action": "RESUME"}

    def set_options(self, options: statements.Options) -> dict[str, Any]:
        return {"action": "SET", "options": options}

    def replay(self, query: Token | None, version: Token) -> dict[str, Any]:
        return {"action": "REPLAY", "query": None if query is None else str(query), "version": int(version)}

    def skip(self, query: Token | None, version: Token) -> dict[str, Any]:
        return {"action": "SKIP", "query": None if query is None else str(query), "version": int(version)}

    def alter_destination(self, name: Token, change: dict[str, Any]) -> statements.AlterDestination:
        return statements.AlterDestination(str(name), **change)

    def drop_destination(
        self, if_exists: bool | None, name: Token, cascade: bool | None
    ) -> statements.DropDestination:
        return statements.DropDestination(str(name), bool(if_exists), bool(cascade))
