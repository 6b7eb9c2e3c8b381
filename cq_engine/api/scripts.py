"""Scripts: statements in a file or a text."""

from __future__ import annotations

from pathlib import Path

from cq_engine.core.errors import CatalogError
from cq_engine.grammar import ScriptItem, split

__all__ = ["read_script"]


def read_script(path_or_text: str | Path) -> list[ScriptItem]:
    """The statements of a script file, or of a text. Raises CatalogError for a file that cannot be read.

    A string of one line that ends in .cql or .sql, or names a file, is a path.
    """
    path = Path(path_or_text) if isinstance(path_or_text, Path) or "\n" not in path_or_text else None
    if path is not None and (
        isinstance(path_or_text, Path) or path.suffix in (".cql", ".sql") or path.is_file()
    ):
        try:
            return split(path.read_text(encoding="utf-8"), source=str(path_or_text))
        except OSError as error:
            raise CatalogError(f"script {path_or_text} cannot be read: {error.strerror}") from error
    return split(str(path_or_text))
