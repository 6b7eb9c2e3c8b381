"""The rules of cq.lark about destinations that are declared by themselves, and about the messages of queues."""

from __future__ import annotations

from typing import Any

from lark import Token, v_args

from cq_engine.grammar import statements
from cq_engine.grammar.clauses import Options, Script
from cq_engine.grammar.rules import Clause, Rules
from cq_engine.grammar.scan import scan


@v_args(inline=True)
class DestinationRules(Rules):
    """CREATE, ALTER and DROP DESTINATION, DEQUEUE, ACK and REJECT; `pause` and `period` are those of queries."""

    def create_destination(
        self, if_not_exists: bool | None, name: Token, kind: Token, clauses: tuple[Clause, ...]
    ) -> statements.CreateDestination:
        given = self.once(clauses)
        script = None
        if "AS" in given:
            text, offset = given["AS"]
            condition, place = given.get("WHEN", ("", 0))
            script = Script(text, condition, given.get("FOR EACH") == "ROW", offset, place)
        for _, _, at in clauses if script is None else ():
            if given.keys() & {"WHEN", "FOR EACH"}:
                self.fail("script_missing", at)
        options = given.get("WITH", ())
        return statements.CreateDestination(str(name), kind.upper(), options, bool(if_not_exists), script)

    def destination_clauses(self, *clauses: Clause) -> tuple[Clause, ...]:
        return clauses

    def script(self, block: Token) -> Clause:
        return "AS", self._inside(block, len("BEGIN"), len("END")), block.start_pos or 0

    def condition(self, brackets: Token) -> Clause:
        return "WHEN", self._inside(brackets, 1, 1), brackets.start_pos or 0

    def _inside(self, token: Token, first: int, last: int) -> tuple[str, int]:
        """What stands between the first and last characters of `token`, as it was written, and where."""
        text = self.source.text[(token.start_pos or 0) + first : (token.end_pos or 0) - last]
        if not scan(text).code.strip("; \t\r\n"):
            self.fail("script_empty", token.start_pos)
        return text.strip(), (token.start_pos or 0) + first + len(text) - len(text.lstrip())

    @v_args(meta=True, inline=True)
    def for_each(self, meta: Any, what: str) -> Clause:
        return "FOR EACH", what, meta.start_pos

    @v_args(meta=True, inline=True)
    def destination_options(self, meta: Any, options: Options) -> Clause:
        return "WITH", options, meta.start_pos

    def resume_delivery(self) -> dict[str, Any]:
        return {"action": "RESUME"}

    def set_options(self, options: Options) -> dict[str, Any]:
        return {"action": "SET", "options": options}

    def replay(self, query: Token | None, version: Token) -> dict[str, Any]:
        return {"action": "REPLAY", "query": None if query is None else str(query), "version": int(version)}

    def skip(self, query: Token | None, version: Token) -> dict[str, Any]:
        return {"action": "SKIP", "query": None if query is None else str(query), "version": int(version)}

    def drop_group(self, group: str) -> dict[str, Any]:
        return {"action": "DROP GROUP", "group": group}

    def alter_destination(self, name: Token, change: dict[str, Any]) -> statements.AlterDestination:
        return statements.AlterDestination(str(name), **change)

    def drop_destination(
        self, if_exists: bool | None, name: Token, cascade: bool | None
    ) -> statements.DropDestination:
        return statements.DropDestination(str(name), bool(if_exists), bool(cascade))

    # ------------------------------------------------------------ messages of queues

    def consumers(self, name: Token) -> str:
        if not name:
            self.fail("group_name", name.start_pos)
        return str(name)

    def dequeue(
        self, count: Token | None, queue: Token, group: str | None, wait: tuple[int, str] | None
    ) -> statements.Dequeue:
        if count is not None and int(count) == 0:
            self.fail("dequeue_none", count.start_pos)
        return statements.Dequeue(str(queue), 1 if count is None else int(count), group, wait)

    def ack(self, queue: Token, group: str | None, message: Token) -> statements.Ack:
        return statements.Ack(str(queue), str(message), group)

    def reject(
        self, queue: Token, group: str | None, message: Token, requeue: bool | None
    ) -> statements.Reject:
        return statements.Reject(str(queue), str(message), group, bool(requeue))
