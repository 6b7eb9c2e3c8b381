"""Mistakes in statements about sources and captures; see messages.py."""

from __future__ import annotations

from cq_engine.grammar.message import Message

_SHAPE = (
    "CREATE CAPTURE name INTO table FROM source TABLE 'relation' USING method [WITH (...)] [EVERY n unit]"
)
_METHODS = (
    "TIMESTAMP (column [, DELETED flag]), CHECKSUM [(column)], COPY, RANGES [(rows = 1000 [, CHECKSUM])], "
    "VIEW 'select ...' and LOG"
)
_FREQUENCIES = "EVERY n unit, ON DEMAND, CRON '...' or START 'timestamp' WITH PERIOD n unit"
_HEAD = r"^CREATE CAPTURE (IF NOT EXISTS )?name INTO name FROM name"
_USING = r"^CREATE CAPTURE .* USING"
_C = "CREATE CAPTURE c INTO t FROM s TABLE 'r'"

SOURCE_MESSAGES: tuple[Message, ...] = (
    Message(
        "replace_capture",
        "a source or a capture cannot be replaced in one statement",
        "write ALTER ... SET to change it, or DROP ... IF EXISTS name and then CREATE",
        (
            "CREATE OR REPLACE ‸SOURCE s TYPE sqlite",
            "CREATE OR REPLACE ‸CAPTURE c INTO t FROM s USING LOG",
        ),
        r"^CREATE OR REPLACE \^ (SOURCE|CAPTURE)$",
    ),
    Message(
        "source_type",
        "TYPE is missing in CREATE SOURCE",
        "write CREATE SOURCE name TYPE postgresql WITH (url = '...'), or TYPE sqlite, mariadb, delta, debezium, ...",
        (
            "CREATE SOURCE s‸",
            "CREATE SOURCE s ‸WITH (url = 'sqlite://')",
            "CREATE SOURCE IF NOT EXISTS s TYPE‸",
        ),
        r"^CREATE SOURCE (IF NOT EXISTS )?name( TYPE)? \^",
    ),
    Message(
        "alter_source_what",
        "{found} is not a change of a source",
        "write ALTER SOURCE name SET WITH (option = value, ...)",
        ("ALTER SOURCE s‸", "ALTER SOURCE s ‸PAUSE", "ALTER SOURCE s SET ‸url = 'x'"),
        r"^ALTER SOURCE name( SET)? \^",
    ),
    Message(
        "capture_into",
        "INTO and the name of a table are missing in CREATE CAPTURE",
        f"write {_SHAPE}",
        (
            "CREATE CAPTURE c‸",
            "CREATE CAPTURE c ‸FROM s TABLE 'r' USING LOG",
            "CREATE CAPTURE IF NOT EXISTS c INTO‸",
        ),
        r"^CREATE CAPTURE (IF NOT EXISTS )?name( INTO)? \^ (?!string)",
    ),
    Message(
        "capture_from",
        "FROM and the name of a source are missing after the table",
        f"write {_SHAPE}; CREATE SOURCE declares the source",
        (
            "CREATE CAPTURE c INTO t‸",
            "CREATE CAPTURE c INTO t ‸USING LOG",
            "CREATE CAPTURE c INTO t FROM‸",
        ),
        r"^CREATE CAPTURE (IF NOT EXISTS )?name INTO name( FROM)? \^ (?!string|\.)",
    ),
    Message(
        "capture_source",
        "the name of the source is missing after FROM",
        f"write {_SHAPE}",
        (
            "CREATE CAPTURE c INTO t FROM TABLE ‸'r' USING LOG",
            "CREATE CAPTURE c INTO t FROM USING ‸LOG",
        ),
        r"^CREATE CAPTURE .*FROM name \^",
        last="TABLE|USING|WHERE",
    ),
    Message(
        "capture_table_word",
        "TABLE is missing before what is captured",
        "write FROM source TABLE 'public.orders': the name as the source writes it, in quotes",
        ("CREATE CAPTURE c INTO t FROM s ‸'r' USING LOG", "CREATE CAPTURE c INTO t FROM s‸.r USING LOG"),
        r"^CREATE CAPTURE .*FROM name \^ (string|\.)$",
    ),
    Message(
        "capture_relation",
        "TABLE is followed by {found}, not by the name of the source's table as a string",
        "write TABLE 'public.orders', as the source calls it",
        (
            "CREATE CAPTURE c INTO t FROM s TABLE ‸orders USING LOG",
            "CREATE CAPTURE c INTO t FROM s TABLE‸",
            "ADVISE CAPTURE FROM s TABLE ‸orders",
        ),
        r"^(CREATE|ADVISE( VERBOSE)?) CAPTURE .* TABLE \^",
    ),
    Message(
        "capture_where",
        "WHERE is followed by {found}, not by a string",
        "write the restriction in the source's SQL, as a string: WHERE 'region = ''EU'''",
        (f"{_C} WHERE ‸region = 1 USING LOG", f"{_C} WHERE‸"),
        r"^CREATE CAPTURE .* WHERE \^",
    ),
    Message(
        "capture_columns",
        "{found} cannot stand here in the columns of a capture",
        "write (column, column AS name, ...): columns of the source, and by AS those of the table that they fill",
        (f"{_C} (a ‸b) USING LOG", f"{_C} (‸) USING LOG", f"{_C} (a AS ‸'b') USING LOG"),
        _HEAD + r"( TABLE string| WHERE string)* \( [^)]*\^",
    ),
    Message(
        "capture_timestamp",
        "TIMESTAMP needs the column that every write sets",
        "write USING TIMESTAMP (updated_at), or TIMESTAMP (updated_at, DELETED flag)",
        (
            f"{_C} USING TIMESTAMP‸",
            f"{_C} USING TIMESTAMP ‸updated_at",
            f"{_C} USING TIMESTAMP ‸EVERY 5 SECONDS",
            f"{_C} USING TIMESTAMP (‸)",
        ),
        _USING + r" TIMESTAMP( \()? \^",
    ),
    Message(
        "capture_deleted",
        "{found} cannot stand here in the brackets of TIMESTAMP",
        "write TIMESTAMP (updated_at), or TIMESTAMP (updated_at, DELETED flag) where a column marks deleted rows",
        (f"{_C} USING TIMESTAMP (ts, ‸flag)", f"{_C} USING TIMESTAMP (ts ‸DELETED flag)"),
        _USING + r" TIMESTAMP \( [^)]*\^",
    ),
    Message(
        "capture_checksum",
        "{found} cannot stand here in the brackets of CHECKSUM",
        "write CHECKSUM, or CHECKSUM (column) where the source keeps a checksum of each row in a column",
        (f"{_C} USING CHECKSUM (‸)", f"{_C} USING CHECKSUM (a‸, b)"),
        _USING + r" CHECKSUM \( [^)]*\^",
    ),
    Message(
        "capture_ranges",
        "{found} cannot stand here in the brackets of RANGES",
        "write RANGES, RANGES (rows = 1000) or RANGES (rows = 1000, CHECKSUM)",
        (
            f"{_C} USING RANGES (‸1000)",
            f"{_C} USING RANGES (rows‸)",
            f"{_C} USING RANGES (CHECKSUM ‸= true)",
        ),
        _USING + r" RANGES \( [^)]*\^",
    ),
    Message(
        "capture_view",
        "VIEW is followed by {found}, not by a query of the source as a string",
        "write USING VIEW 'select ...', in the source's SQL",
        (
            "CREATE CAPTURE c INTO t FROM s USING VIEW ‸SELECT 1",
            "CREATE CAPTURE c INTO t FROM s USING VIEW‸",
        ),
        _USING + r" VIEW \^",
    ),
    Message(
        "capture_view_table",
        "TABLE and VIEW contradict each other",
        "VIEW captures the result of its query: leave TABLE '...' away, or choose another method",
        ("CREATE CAPTURE c INTO t FROM s ‸TABLE 'r' USING VIEW 'select 1'",),
    ),
    Message(
        "capture_empty",
        "the string after {clause} is empty",
        "write what it means to the source, or leave the clause away where that can be",
        (
            "CREATE CAPTURE c INTO t FROM s TABLE ‸'' USING LOG",
            f"{_C} WHERE ‸' ' USING LOG",
            "CREATE CAPTURE c INTO t FROM s USING VIEW ‸''",
            "ADVISE CAPTURE FROM s TABLE ‸''",
        ),
    ),
    Message(
        "capture_method",
        "{found} is not a method of capture",
        f"methods are {_METHODS}",
        (f"{_C} USING ‸POLLING", f"{_C} USING ‸(a)", f"{_C} USING‸"),
        _USING + r" \^",
    ),
    Message(
        "capture_using",
        "USING and a method are missing before {found}",
        f"write {_SHAPE}; methods are {_METHODS}",
        (f"{_C}‸", f"{_C} ‸EVERY 5 SECONDS", f"{_C} (a AS b) WHERE 'x' ‸WITH (initial = none)"),
        _HEAD + r"( TABLE string| WHERE string| \( [^()]* \))* \^",
    ),
    Message(
        "capture_when",
        "a capture cannot wait for commits: it reads elsewhere",
        f"say when it reads: {_FREQUENCIES}",
        (
            f"{_C} USING LOG ‸ON COMMIT",
            f"{_C} USING LOG ‸ON INSERT OR UPDATE TO t",
            f"{_C} USING LOG ON ‸CHANGE",
            "CREATE TABLE t FROM DELTA 'p' ‸ON COMMIT",
            "ALTER CAPTURE c SET ‸ON COMMIT",
            "ALTER CAPTURE c SET ON DELETE‸",
        ),
        r"^(CREATE|ALTER) CAPTURE .* ON( (INSERT|DELETE|UPDATE).*)? \^",
    ),
    Message(
        "capture_clause",
        "{found} cannot stand here in CREATE CAPTURE",
        f"after the method stand its options, WITH (...); then {_FREQUENCIES}; then options of the capture, WITH (...)",
        (
            f"{_C} USING LOG ‸DESTINATION d",
            f"{_C} USING LOG EVERY 5 SECONDS ‸TABLE 'r'",
            f"{_C} USING COPY ‸(a)",
        ),
        r"^CREATE CAPTURE ",
        "EVERY",
    ),
    Message(
        "alter_capture_what",
        "{found} is not a change of a capture",
        f"write PAUSE, RESUME, SET WITH (option = value, ...), or SET and when: {_FREQUENCIES}",
        ("ALTER CAPTURE c ‸STOP", "ALTER CAPTURE c‸", "ALTER CAPTURE c SET ‸USING LOG"),
        r"^ALTER CAPTURE name( SET)? \^",
    ),
    Message(
        "advise_what",
        "{found} cannot stand here in ADVISE CAPTURE",
        "write ADVISE [VERBOSE] CAPTURE FROM source TABLE 'relation'",
        (
            "ADVISE‸",
            "ADVISE CAPTURE FROM TABLE ‸'r'",
            "ADVISE ‸SOURCE s",
            "ADVISE CAPTURE FROM s‸",
            "ADVISE VERBOSE CAPTURE ‸s TABLE 'r'",
        ),
        r"^ADVISE\b.*\^",
    ),
)
