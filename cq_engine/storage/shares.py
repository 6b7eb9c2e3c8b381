"""Who of a job's tasks reads what of files: small files together, a large one in shares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Share", "cut"]

_File = TypeVar("_File")


@dataclass(frozen=True)
class Share(Generic[_File]):
    """A part of a file: of so many equal ones, the `number`-th, from 0."""

    file: _File
    number: int = 0
    of: int = 1


def cut(files: Iterable[tuple[_File, int, bool]], size: int) -> list[list[Share[_File]]]:
    """The tasks that read files, of each so many bytes, about `size` each; the flag says that a file can be cut. At least one task.

    >>> [[share.file for share in task] for task in cut([("a", 3, True), ("b", 4, True), ("c", 12, True)], 7)]
    [['a', 'b'], ['c'], ['c']]
    """
    tasks: list[list[Share[_File]]] = [[]]
    room = size
    for file, weight, divisible in files:
        shares = max(1, math.ceil(weight / size)) if divisible else 1
        for number in range(shares):
            if tasks[-1] and weight // shares > room:
                tasks.append([])
                room = size
            tasks[-1].append(Share(file, number, shares))
            room -= weight // shares
    return tasks
