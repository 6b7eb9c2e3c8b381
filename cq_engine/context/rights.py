"""What statements may do besides reading and writing tables: `conf={"restricted": "on"}` and `copy_paths`.

A program that passes on SQL of others runs it with its own rights: Spark's SQL calls Java, starts scripts, reads files
and the environment. A restricted engine refuses all of that, twice. The query's tree names the culprit and its place
before Spark sees the text. Spark's analysed plan decides: what names became there, in views, functions and subqueries,
cannot be spelled in another way. It is asked for the text in brackets, where a command does not parse.

What a restricted process asks of the one with the duties is restricted there (`asked_for`), too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from cq_engine.core.errors import AnalysisError, Location
from cq_engine.core.options import COPY_PATHS, RESTRICTED, option_value, parse_paths
from cq_engine.planner.tokens import scan
from cq_engine.spark.sql import run_sql

__all__ = ["Rights", "asked_for"]

Place = Callable[[int], Location | None]
"""Where an offset of a text stands in what the user wrote."""

_CODE = "it calls Java"
_FILES = "it can be told to read files"
_NAMES = "it takes names from text, which hides what they are"
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("reflect", "java_method", "try_reflect"), _CODE),
    **dict.fromkeys(("from_xml", "schema_of_xml", "from_avro", "to_avro", "schema_of_avro"), _FILES),
    **dict.fromkeys(("from_protobuf", "to_protobuf"), _FILES),
    **dict.fromkeys(
        ("input_file_name", "input_file_block_start", "input_file_block_length"),
        "it names files of the warehouse",
    ),
    "python_worker_logs": "it reads logs",
    "identifier": _NAMES,
}
"""Functions of Spark that a restricted engine refuses, and why. All others compute from their arguments only."""
_CLASSES: Mapping[str, str] = {
    **dict.fromkeys(("CallMethodViaReflection", "TryReflect"), _CODE),
    **dict.fromkeys(("XmlToStructs", "SchemaOfXml", "FromAvro", "ToAvro", "SchemaOfAvro"), _FILES),
    **dict.fromkeys(("AvroDataToCatalyst", "CatalystDataToAvro", "FromProtobuf", "ToProtobuf"), _FILES),
    **dict.fromkeys(("ProtobufDataToCatalyst", "CatalystDataToProtobuf"), _FILES),
    **dict.fromkeys(
        ("InputFileName", "InputFileBlockStart", "InputFileBlockLength"), "it names files of the warehouse"
    ),
    "ScriptTransformation": "it starts a program",
    "PythonWorkerLogs": "it reads logs",
}
"""The same in Spark's analysed plan."""
_LEAVES = {
    "OneRowRelation",
    "LocalRelation",
    "ResolvedInlineTable",
    "Range",
    "CTERelationRef",
    "UnionLoopRef",
}
"""Relations of an analysed plan that read nothing; those that the engine gives are below a View."""
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_SUBSTITUTE = "spark.sql.variable.substitute"
_READING = """allowbackslashescapinganycharacter allowcomments allownonnumericnumbers allownumericleadingzeros allowsinglequotes
    allowunquotedcontrolchars allowunquotedfieldnames charset chartoescapequoteescaping columnnameofcorruptrecord comment
    compression dateformat datetimerebasemode delim delimiter dropfieldifallnull emptyvalue encoding enforceschema escape
    header ignoreleadingwhitespace ignoretrailingwhitespace inferschema int96rebasemode linesep locale maxcharspercolumn
    maxcolumns mergeschema mode modifiedafter modifiedbefore multiline nanvalue negativeinf null nullstr nullvalue
    pathglobfilter positiveinf prefersdecimal primitivesasstring quote recursivefilelookup samplingratio sep timeformat
    timestampformat timestampntzformat timezone unescapedquotehandling"""
"""Options of Spark's readers that say how files are read. Others reach Hadoop, and name classes and files."""
_GLOB = re.compile(r"[*?\[]")
_HINT = "this engine runs statements of others; what needs more is for the program that opened the warehouse"


_asked: ContextVar[bool] = ContextVar("restricted", default=False)
"""Whether this thread does what a restricted process has asked for."""


@contextmanager
def asked_for(restricted: bool) -> Iterator[None]:
    """A block that does what another process asks for, which may itself be restricted."""
    before = _asked.set(restricted)
    try:
        yield
    finally:
        _asked.reset(before)


@dataclass(frozen=True)
class Rights:
    """`always`: the engine is restricted. `copy_paths`: where COPY INTO reads."""

    always: bool = False
    copy_paths: tuple[str, ...] = ()

    @property
    def restricted(self) -> bool:
        """Whether statements run no code and read neither files nor the environment: nor those of who asks for them."""
        return self.always or _asked.get()

    @classmethod
    def of(cls, conf: Mapping[str, str]) -> Rights:
        """What the engine's options say."""
        on = option_value(RESTRICTED, conf).lower() == "on"
        return cls(on, parse_paths(option_value(COPY_PATHS, conf)))

    def prepare(self, spark: SparkSession) -> None:
        """Turns off that Spark puts variables of the environment, `${env:NAME}`, into texts."""
        if self.always and spark.conf.get(_SUBSTITUTE, "true") != "false":
            spark.conf.set(_SUBSTITUTE, "false")

    # ------------------------------------------------------------ queries

    def check_tree(self, tree: exp.Expr, text: str, place: Place) -> None:
        """Raises AnalysisError where the query calls what it may not."""
        if not self.restricted:
            return
        for call in tree.find_all(exp.Anonymous):
            name = call.name.lower()
            if name in _REFUSED:
                raise _refused(f"function {name}", _REFUSED[name], place(_offset(text, name)))
        script = tree.find(exp.QueryTransform)
        if script is not None:
            raise _refused("TRANSFORM ... USING", _CLASSES["ScriptTransformation"], None)

    def check_definition(self, definition: str, place: Place) -> None:
        """Raises AnalysisError where the text of a SQL function, from its parameters on, calls what it may not."""
        if not self.restricted:
            return
        self.check_stored(definition)
        tokens = scan(definition)
        for at, token in enumerate(tokens):
            if token.text.lower() in _REFUSED and _is_called(tokens, at):
                name = token.text.lower()
                raise _refused(f"function {name}", _REFUSED[name], place(token.start))

    def check_stored(self, text: str) -> None:
        """Raises AnalysisError where a definition, which other processes will run, can name variables of theirs."""
        if self.restricted and "${" in text:
            raise _refused(
                "${ in a definition", "it would be a variable in the Spark session of another process", None
            )

    def check_plan(self, spark: SparkSession, text: str, relations: Mapping[str, DataFrame]) -> None:
        """Raises AnalysisError where the query, over `relations` as in `run_sql`, does what it may not. Spark's own errors
        name places in the text behind one more bracket."""
        if not self.restricted:
            return
        frame = run_sql(spark, f"({text}\n)", relations)
        plan = getattr(frame, "_jdf", None)
        if plan is None:
            raise AnalysisError(
                "a restricted engine needs Spark in its own process",
                detail="Spark Connect does not show what a statement does",
                hint="connect without a session of Spark Connect",
            )
        for name, leaf in _classes(json.loads(plan.queryExecution().analyzed().toJSON())):
            short = name.rsplit(".", 1)[-1].rstrip("$")
            if short in _CLASSES:
                raise _refused(f"{short} in Spark's plan", _CLASSES[short], None)
            if leaf and short not in _LEAVES and not name.startswith(_EXPRESSIONS):
                raise _refused(
                    "a relation that is no table of this warehouse", f"Spark's plan has {short}", None
                )

    def check_outside(self, what: str, location: Location | None) -> None:
        """Raises AnalysisError where nothing may be written besides the tables of the warehouse."""
        if self.restricted:
            raise _refused(what, "it writes outside of the warehouse, and reads the environment", location)

    def check_set(self, name: str) -> None:
        """Raises AnalysisError where SET may not change an option of Spark."""
        if self.restricted:
            raise _refused(f"SET {name}", "Spark's options say what is read and what is run", None)

    # ------------------------------------------------------------ files

    def check_copy_option(self, name: str) -> None:
        """Raises AnalysisError for an option of COPY INTO that says more than how files are read."""
        if self.restricted and name.lower() not in _READING.split():
            raise _refused(f"option {name} of COPY INTO", "it may name classes and files", None)

    def copy_path(self, path: str) -> str:
        """The path that COPY INTO reads: as it was written, or absolute where `copy_paths` allows it.

        Raises AnalysisError where it is not in one of the `copy_paths`, or where a restricted engine has none.
        """
        if not self.copy_paths:
            if self.restricted:
                raise _refused("COPY INTO", f"no {COPY_PATHS} are given, so that it may read no file", None)
            return path
        local = re.sub(r"^file:(//)?(?=/)", "", path, flags=re.IGNORECASE)
        allowed = ", ".join(self.copy_paths)
        if re.search(r"\.\.|[{}\\]|%2e", local, re.IGNORECASE):
            raise AnalysisError(
                f"COPY INTO may not read {path}",
                detail="paths with .., {}, % or a backslash are not followed here",
                hint=f"write it out, with * at most; {COPY_PATHS} are {allowed}",
            )
        if re.match(r"[A-Za-z][\w+.-]*:", local):
            roots = [root for root in self.copy_paths if "://" in root]
            found = any(local == root or local.startswith(root.rstrip("/") + "/") for root in roots)
        else:
            local = _resolved(local)
            roots = [os.path.realpath(root) for root in self.copy_paths if "://" not in root]
            found = all(any(_is_inside(each, root) for root in roots) for each in (local, *_links(local)))
        if not found:
            raise AnalysisError(f"COPY INTO may not read {path}", hint=f"{COPY_PATHS} are {allowed}")
        return local


def _refused(what: str, why: str, location: Location | None) -> AnalysisError:
    return AnalysisError(
        f"{what} is switched off (restricted = on)", detail=why, hint=_HINT, location=location
    )


def _is_called(tokens: list[Token], at: int) -> bool:
    after = tokens[at + 1] if at + 1 < len(tokens) else None
    return (
        tokens[at].token_type != TokenType.STRING
        and after is not None
        and after.token_type == TokenType.L_PAREN
    )


def _offset(text: str, name: str) -> int:
    """Where the function is called first."""
    tokens = scan(text)
    found = (t.start for at, t in enumerate(tokens) if t.text.lower() == name and _is_called(tokens, at))
    return next(found, 0)


# ---------------------------------------------------------------- Spark's plan


def _classes(value: Any) -> Iterator[tuple[str, bool]]:
    """The classes of a plan's nodes and expressions, as `TreeNode.toJSON` gives them, and which of them are leaves. What is
    below a View, by which the engine hands a relation over, is left out."""
    if isinstance(value, list):
        trees = bool(value) and isinstance(value[0], dict) and "class" in value[0]
        for each in _outside_views(value) if trees else value:
            yield from _classes(each)
    elif isinstance(value, dict):
        if "class" in value and "num-children" in value:
            yield value["class"], value["num-children"] == 0
        for each in value.values():
            yield from _classes(each)


def _outside_views(nodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Nodes of a tree in pre-order, without Views and what is below them."""
    at = 0
    while at < len(nodes):
        if not nodes[at]["class"].endswith(".View"):
            yield nodes[at]
            at += 1
            continue
        left = 1
        while left:
            left += nodes[at]["num-children"] - 1
            at += 1


# ---------------------------------------------------------------- paths


def _resolved(path: str) -> str:
    """The absolute path without symbolic links up to its first wildcard."""
    wild = _GLOB.search(path)
    if wild is None:
        return os.path.realpath(path)
    start = path.rfind("/", 0, wild.start()) + 1
    return f"{os.path.realpath(path[:start] or '.').rstrip('/')}/{path[start:]}"


def _is_inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _links(path: str) -> Iterator[str]:
    """Where symbolic links among the files that the path means lead to."""
    wild = _GLOB.search(path)
    start = Path(path if wild is None else path[: path.rfind("/", 0, wild.start())])
    for directory, inner, files in os.walk(start):
        for name in (*inner, *files):
            each = Path(directory, name)
            if each.is_symlink():
                yield os.path.realpath(each)
