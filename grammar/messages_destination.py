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
        "write PAUSE, RESUME, SET WITH (option = value, ...), REPLAY [FOR query] FROM VERSION n, "
        "SKIP [FOR query] TO VERSION n or DROP GROUP 'group'",
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
    Message(
        "drop_group",
        "DROP is followed by {found}, not by a group of the queue",
        "write DROP GROUP 'name'; DROP DESTINATION name drops the queue",
        (
            "ALTER DESTINATION d DROP ‸billing",
            "ALTER DESTINATION d DROP GROUP ‸billing",
            "ALTER DESTINATION d DROP‸",
        ),
        r"^ALTER DESTINATION name DROP( GROUP)? \^",
    ),
    Message(
        "dequeue_none",
        "DEQUEUE 0 gives no message",
        "write how many messages it gives at most, as in DEQUEUE 10 FROM queue",
        ("DEQUEUE ‸0 FROM q",),
    ),
    Message(
        "group_name",
        "the name of a group is empty",
        "write GROUP 'name', or leave it out: then it is the group 'default'",
        ("DEQUEUE FROM q GROUP ‸''", "ALTER DESTINATION q DROP GROUP ‸''"),
    ),
    Message(
        "dequeue_wait",
        "WAIT is followed by {found}, not by a length of time",
        "write WAIT 5 SECONDS, or WAIT 1 MINUTE",
        ("DEQUEUE FROM q WAIT‸", "DEQUEUE FROM q WAIT ‸SECONDS", "DEQUEUE 2 FROM q GROUP 'a' WAIT 5‸"),
        r"^DEQUEUE .*WAIT( number| string)? \^",
    ),
    Message(
        "dequeue_from",
        "{found} cannot stand here in DEQUEUE",
        "write DEQUEUE [n] FROM queue [GROUP 'name'] [WAIT 5 SECONDS]",
        (
            "DEQUEUE‸",
            "DEQUEUE ‸q",
            "DEQUEUE ‸-1 FROM q",
            "DEQUEUE 5 FROM‸",
            "DEQUEUE FROM q GROUP ‸billing",
            "DEQUEUE FROM q ‸UP TO a1a1a1",
        ),
        r"^DEQUEUE( .*)? \^",
    ),
    Message(
        "ack_what",
        "{found} cannot stand here in ACK",
        "write ACK queue [GROUP 'name'] UP TO message_id, with an id that DEQUEUE gave",
        ("ACK‸", "ACK q‸", "ACK q ‸MESSAGE a1a1a1", "ACK q UP TO‸", "ACK q GROUP 'a' UP TO ‸5"),
        r"^ACK( .*)? \^",
    ),
    Message(
        "reject_what",
        "{found} cannot stand here in REJECT",
        "write REJECT queue [GROUP 'name'] MESSAGE message_id [REQUEUE], with an id that DEQUEUE gave",
        (
            "REJECT‸",
            "REJECT q‸",
            "REJECT q ‸UP TO a1a1a1",
            "REJECT q MESSAGE‸",
            "REJECT q MESSAGE a1a1a1 ‸LATER",
        ),
        r"^REJECT( .*)? \^",
    ),
)
