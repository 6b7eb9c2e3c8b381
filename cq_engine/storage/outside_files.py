"""Files of the outside world in a bucket, of which Spark's session has no file system: which there are.

What names mean is what they mean to Spark: `*`, `?`, `[…]` and `{…}` stand for names within one directory, a directory for the
files in it, but for those whose names begin with a dot or an underscore. `outside_parquet` and `outside_lines` read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import pyarrow as pa
import pyarrow.fs as pafs

from cq_engine.catalog.storage.base import Found, Store
from cq_engine.core.disk import disk_error
from cq_engine.core.errors import StorageError

__all__ = ["asking", "find"]

_SPECIAL = re.compile(r"[*?\[\]{}\\]")
_PARTITIONS = (
    "columns stand in the names of directories, which only Spark's own file system reads",
    "start Spark with one (s3a:// is in hadoop-aws, which spark.jars.packages takes), or copy one directory after the other",
)


def find(store: Store, path: str) -> list[Found]:
    """The files that a path of the store means, by name. Raises StorageError where there are none, or those of a partitioned table."""
    asked = store.uri(path)
    with asking(f"list {asked}", store):
        meant = {each.path: each for pattern in _alternatives(path) for each in _meant(store, pattern)}
        found: dict[str, Found] = {}
        for each in meant.values():
            inside = _listed(store, each.path) if each.type == pafs.FileType.Directory else [each]
            if any("=" in one.base_name and not one.is_file for one in inside):
                raise StorageError(
                    f"{asked} is a table in partitions", detail=_PARTITIONS[0], hint=_PARTITIONS[1]
                )
            for one in inside:
                if one.is_file and not one.base_name.startswith((".", "_")):
                    found[one.path] = _found(store, one)
    if not found:
        raise StorageError(
            f"there are no files at {asked}",
            hint="see how it is written; a directory has its own files, not those below it",
        )
    return [found[each] for each in sorted(found)]


@contextmanager
def asking(doing: str, store: Store) -> Iterator[None]:
    """A block that asks the store, for `doing`. What it refuses is a StorageError."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise disk_error(doing, error, store.location) from error


def _system(store: Store) -> pafs.FileSystem:
    return store.filesystem or pafs.LocalFileSystem()


def _listed(store: Store, directory: str) -> list[pafs.FileInfo]:
    """What lies in a directory, not what lies below that."""
    return list(_system(store).get_file_info(pafs.FileSelector(directory, allow_not_found=True)))


def _found(store: Store, info: pafs.FileInfo) -> Found:
    top = store.path("").rstrip("/")
    written = 0 if info.mtime is None else int(info.mtime.timestamp() * 1000)
    return Found(info.path.removeprefix(f"{top}/"), info.size, written)


def _meant(store: Store, pattern: str) -> list[pafs.FileInfo]:
    """The files and directories that a pattern without braces means."""
    places = [store.path("").rstrip("/")]
    parts = [part for part in pattern.split("/") if part]
    for n, part in enumerate(parts):
        if not _SPECIAL.search(part):
            places = [f"{place}/{part}" for place in places]
            continue
        matches = _matcher(part)
        listed = chain.from_iterable(_listed(store, place) for place in places)
        last = n == len(parts) - 1
        places = [
            each.path for each in listed if matches.fullmatch(each.base_name) and (last or not each.is_file)
        ]
    infos = _system(store).get_file_info(places) if places else []
    return [each for each in infos if each.type != pafs.FileType.NotFound]


def _alternatives(pattern: str) -> list[str]:
    """What a pattern with `{a,b}` stands for. Raises StorageError where a brace is not closed."""
    cuts: list[int] = []
    start, depth, at = -1, 0, 0
    while at < len(pattern):
        one = pattern[at]
        if one == "\\":
            at += 1
        elif one == "{":
            start, depth, cuts = (at, 1, [at]) if depth == 0 else (start, depth + 1, cuts)
        elif one == "," and depth == 1:
            cuts.append(at)
        elif one == "}" and depth:
            depth -= 1
            if depth == 0:
                ends = [*cuts[1:], at]
                return [
                    whole
                    for first, end in zip(cuts, ends)
                    for whole in _alternatives(pattern[:start] + pattern[first + 1 : end] + pattern[at + 1 :])
                ]
        at += 1
    if depth:
        raise _no_pattern(pattern, "a brace is not closed")
    return [pattern]


def _matcher(part: str) -> re.Pattern[str]:
    """What a pattern of one name means. Raises StorageError."""
    text, rest = "", part
    while rest:
        one, rest = rest[0], rest[1:]
        choice = re.match(r"[!^]?[^\]]+\]", rest) if one == "[" else None
        if choice is not None:
            text += "[" + re.sub(r"^!", "^", choice[0]).replace("\\", r"\\").replace("[", r"\[")
            rest = rest[choice.end() :]
        elif one == "[":
            raise _no_pattern(part, "a bracket is not closed")
        elif one == "\\" and rest:
            text, rest = text + re.escape(rest[0]), rest[1:]
        else:
            text += {"*": ".*", "?": "."}.get(one, re.escape(one))
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise _no_pattern(part, str(error)) from None


def _no_pattern(text: str, why: str) -> StorageError:
    return StorageError(f"{text} is no pattern of names", detail=why, hint="there are *, ?, [a-z] and {a,b}")
