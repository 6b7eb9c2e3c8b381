"""Mistakes in statements about destinations; see messages.py."""

from __future__ import annotations

from cq_engine.grammar.message import Message

DESTINATION_MESSAGES: tuple[Message, ...] = (
    Message(
        "destination_type",
        "TYPE is missing in CREATE DESTINATION",
        "write CREATE DESTINATION name TYPE table [WITH (option = value, ...)], or TYPE callback",
        (
            "CREATE DESTINATION d‸",
            "CREATE DESTINATION d ‸WITH (mode = 'merge')",
            "CREATE DESTINATION d ‸AS TABLE",
            "CREATE DESTINATION d TYPE‸",
        ),
        r"^CREATE DESTINATION (IF NOT EXISTS )?name( TYPE)? \^",
    ),
    Message(
        "alter_destination_what",
        "{found} is not a change of a destination",
        "write PAUSE, RESUME, SET WITH (option = value, ...), REPLAY [FOR query] FROM VERSION n "
        "or SKIP [FOR query] TO VERSION n",
        ("ALTER DESTINATION d ‸STOP", "ALTER DESTINATION d‸", "ALTER DESTINATION d SET ‸mode = 'merge'"),
        r"^ALTER DESTINATION name( SET)? \^",
    ),
    Message(
        "replay_from",
        "{found} is no version to go back or forward to",
        "write REPLAY [FOR query] FROM VERSION n: what comes after version n is delivered again; "
        "or SKIP [FOR query] TO VERSION n: nothing up to n is delivered",
        (
            "ALTER DESTINATION d REPLAY ‸5",
            "ALTER DESTINATION d REPLAY FOR q FROM ‸5",
            "ALTER DESTINATION d SKIP FOR q ‸FROM VERSION 5",
            "ALTER DESTINATION d SKIP TO VERSION ‸x",
        ),
        r"^ALTER DESTINATION name (REPLAY|SKIP) .*\^",
    ),
)
