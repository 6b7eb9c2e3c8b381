"""Mistakes in statements about destinations; see messages.py."""

from __future__ import annotations

from cq_engine.grammar.message import Message

DESTINATION_MESSAGES: tuple[Message, ...] = (
    Message(
        "destination_type",
        "TYPE is missing in CREATE DESTINATION",
        "write CREATE DESTINATION name TYPE table [WITH (option = value, ...)], or TYPE callback, or TYPE trigger AS BEGIN ...",
        (
            "CREATE DESTINATION d‸",
            "CREATE DESTINATION d ‸WITH (mode = 'merge')",
            "CREATE DESTINATION d ‸AS TABLE",
            "CREATE DESTINATION d TYPE‸",
        ),
        r"^CREATE DESTINATION (IF NOT EXISTS )?name( TYPE)? \^",
    ),
    Message(
        "unclosed_script",
        "the script that begins here is never closed",
        "close it with END after its last statement; CASE has an END of its own",
        (
            "CREATE DESTINATION d TYPE trigger AS ‸BEGIN DELETE FROM t;",
            "CREATE DESTINATION d TYPE trigger AS ‸BEGIN UPDATE t SET a = CASE WHEN b THEN 1 END;",
        ),
    ),
    Message(
        "script_empty",
        "nothing stands here between the first and the last word",
        "write BEGIN statement; ... END, and WHEN (condition) or no WHEN",
        (
            "CREATE DESTINATION d TYPE trigger AS ‸BEGIN ; END",
            "CREATE DESTINATION d TYPE trigger AS BEGIN DELETE FROM t; END WHEN ‸()",
        ),
    ),
    Message(
        "script_missing",
        "WHEN and FOR EACH are for a trigger, and its script is missing",
        "write CREATE DESTINATION name TYPE trigger AS BEGIN statement; ... END [WHEN (condition)] [FOR EACH ROW]",
        (
            "CREATE DESTINATION d TYPE trigger ‸FOR EACH ROW",
            "CREATE DESTINATION d TYPE trigger WHEN ‸(a > 1) WITH (max_depth = 2)",
        ),
    ),
    Message(
        "script_statement",
        "{found} cannot stand in the script of a trigger",
        "INSERT, UPDATE, DELETE, MERGE and TRUNCATE can; the script is one transaction with what it has received",
        (
            "CREATE DESTINATION d TYPE trigger AS BEGIN DELETE FROM t; ‸SELECT 1; END",
            "CREATE DESTINATION d TYPE trigger AS BEGIN ‸COMMIT; END",
            "CREATE DESTINATION d TYPE trigger AS BEGIN ‸COPY INTO t FROM 'a.csv' FORMAT csv; END",
        ),
    ),
    Message(
        "script_begin",
        "AS begins the script of a trigger, and {found} is none",
        "write AS BEGIN statement; ... END",
        (
            "CREATE DESTINATION d TYPE trigger AS ‸DELETE FROM t",
            "CREATE DESTINATION d TYPE trigger AS‸",
        ),
        r"^CREATE DESTINATION (IF NOT EXISTS )?name TYPE name AS \^",
    ),
    Message(
        "trigger_when",
        "WHEN is followed by a condition in brackets, not by {found}",
        "write WHEN (condition), over the columns of the query and old_column",
        ("CREATE DESTINATION d TYPE trigger AS BEGIN DELETE FROM t; END WHEN ‸a > 1",),
        r"^CREATE DESTINATION .* WHEN \^",
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
