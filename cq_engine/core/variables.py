"""What stands for a secret in a declaration, which is stored and shown: `${NAME}` for a variable of the environment,
`${file:/run/secrets/x}` for the text of a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cq_engine.core.errors import CQError

__all__ = ["VARIABLE", "expand"]

VARIABLE = re.compile(r"\$\{(?:file:([^}]+)|(\w+))\}")


def expand(value: str, failure: type[CQError], reader: str) -> str:
    """`value` with what its variables stand for, without blanks around a file's text.

    Raises `failure` for a variable that is not set and a file that cannot be read. `reader` says who reads them, and when.
    """

    def found(match: re.Match[str]) -> str:
        file, name = match.groups()
        if file is not None:
            return _text(file, failure, reader)
        if name not in os.environ:
            raise failure(
                f"the environment variable {name} is not set",
                detail=f"it is read by {reader}",
                hint=f"set {name} where this process is started",
            )
        return os.environ[name]

    return VARIABLE.sub(found, value)


def _text(file: str, failure: type[CQError], reader: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise failure(
            f"the file {file} cannot be read: {why}",
            detail=f"it is read by {reader}",
            hint="write its path in full, and let the account of this process read it",
        ) from None
