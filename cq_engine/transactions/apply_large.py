"""The commits of `apply_changes` with executors: prepared beside others' commits, and again where one comes in between.

The versions and commit times stand in the files, so that any other commit makes them void. What the changes do to their keys
does not depend on it, unless the other commit is of one of their tables: `Checked` keeps it.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from cq_engine.catalog.attempts import Attempt
from cq_engine.catalog.model import CatalogState
from cq_engine.context.services import Services
from cq_engine.core import faults
from cq_engine.core.errors import ConflictError
from cq_engine.transactions.commit import Also, check_definitions
from cq_engine.transactions.large_batches import LargeChanges
from cq_engine.transactions.large_changes import Checked, Staged, stage_changes
from cq_engine.transactions.transaction_order import timestamps

__all__ = ["apply_large"]

Done: TypeAlias = "tuple[list[int], dict[int, dict[str, frozenset[str]]]]"


def apply_large(
    services: Services,
    changes: LargeChanges,
    commit_time: str | datetime | None,
    also: Also,
    *,
    clamp: bool,
    keep_empty: bool,
) -> Done:
    """Commits the changes as `apply_changes.apply_all` does, whose arguments these are.

    Others commit meanwhile. Where they have, everything is prepared again, at most `Limits.commit_tries` times; then they wait
    until it is through.

    Returns:
        The commit versions in order, and per version the tables with which of INSERT, DELETE, UPDATE they had.

    Raises:
        ConflictError: a table was altered or dropped meanwhile.
        AnalysisError, ConstraintError, TransactionError: as `apply_all`.
    """
    catalog, tries = services.catalog, services.limits.commit_tries
    with Checked(services, changes.batches) as checked:
        for n in range(tries + 1):
            attempt = catalog.attempt("apply", by_any=True)  # is to be known before its files are
            catalog.follow()
            try:
                with catalog.exclusive(by_any=True) if n == tries else nullcontext():
                    prepared = _prepare(services, changes, checked, attempt, commit_time, clamp=clamp)
                    if not keep_empty and not any(each.files for each in prepared.staged):
                        return [], {}
                    if _commit(services, prepared, attempt, also):
                        return prepared.done()
            finally:
                attempt.abandon()  # which does nothing where it was used
    raise ConflictError("other commits came in between", hint="apply the changes again")


@dataclass(frozen=True)
class _Prepared:
    """Commits that are checked and in files, to be written if `first` is the next version and nothing else is defined."""

    first: int
    stamps: list[datetime]
    state: CatalogState
    staged: list[Staged]

    def done(self) -> Done:
        changed: dict[int, dict[str, frozenset[str]]] = {}
        for each in self.staged:
            for version, kinds in each.kinds.items():
                changed.setdefault(version, {})[each.table.name] = kinds
        return [self.first + n for n in range(len(self.stamps))], dict(sorted(changed.items()))


def _prepare(
    services: Services,
    changes: LargeChanges,
    checked: Checked,
    attempt: Attempt,
    commit_time: str | datetime | None,
    *,
    clamp: bool,
) -> _Prepared:
    """Checks the changes against the newest commit, and writes the files of those that would follow it."""
    catalog = services.catalog
    with catalog.lock:
        version, state = catalog.newest_version, catalog.state
        checked.hold(version)
        stamps = timestamps(services, changes.times, commit_time, clamp=clamp)
    check_definitions(state, [batch.table for batch in changes.batches])
    for batch in changes.batches:
        batch.check()
    faults.point("commit.begin")
    staged = [stage_changes(services, attempt, each, version + 1, stamps) for each in checked.net()]
    faults.point("commit.staged")
    return _Prepared(version + 1, stamps, state, staged)


def _commit(services: Services, prepared: _Prepared, attempt: Attempt, also: Also) -> bool:
    """Writes what is prepared; False where another commit has come in between."""
    catalog, staged = services.catalog, [each for each in prepared.staged if each.files]
    with catalog.exclusive(by_any=True):
        if catalog.newest_version + 1 != prepared.first or catalog.state is not prepared.state:
            return False
        with catalog.write(attempt if staged else None, by_any=True) as unit:
            for n, stamp in enumerate(prepared.stamps):
                unit.add_commit(prepared.first + n, stamp)
            for each in staged:
                kinds = frozenset().union(*each.kinds.values())
                low, high = min(each.kinds), max(each.kinds)
                unit.add_change_files(each.table.storage, low, high, each.files, kinds)
            also(unit, prepared.first + len(prepared.stamps) - 1)
            faults.point("commit.before_catalog")
    faults.point("commit.after_catalog")
    return True
