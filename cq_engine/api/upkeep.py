"""The façade's part about the warehouse as such: publishing, compaction, retention."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cq_engine.api.entry import entry
from cq_engine.api.performing import Performing
from cq_engine.catalog import apply
from cq_engine.catalog.groups import owner
from cq_engine.catalog.names import check_snapshot
from cq_engine.core.errors import LeaseError
from cq_engine.core.options import parse_retention
from cq_engine.core.troubles import Troubles
from cq_engine.launch.lazy_session import LazySession
from cq_engine.maintenance.compaction import Compactor
from cq_engine.spark.sql import quote

if TYPE_CHECKING:
    from cq_engine.catalog.delta_lake import Publisher
    from cq_engine.destinations.queues.logs import Logs
    from cq_engine.groups.constants import Constants
    from cq_engine.groups.progress import Progress
    from cq_engine.maintenance.retention import Vacuumed

__all__ = ["Upkeep"]


class Upkeep(Performing):
    """What an engine does with the files of its warehouse; the base of `Engine`, which has the parts."""

    conf: dict[str, str]
    compactor: Compactor
    _constants: Constants
    _progress: Progress
    _publisher: Publisher | None = None
    _reading: Logs | None
    _spark_session: LazySession

    @property
    def publisher(self) -> Publisher:
        """Made when it is first needed: commits do without what it imports."""
        with self._making:
            if self._publisher is None:
                from cq_engine.catalog.delta_lake import Publisher

                self._publisher = Publisher(self.catalog)
            return self._publisher

    @entry
    def publish(self) -> None:
        """Publishes everything committed as Delta tables: `tables/`, `changes/` and `deltas/` of the warehouse. Nothing
        where another process has the duties, which publishes."""
        with suppress(LeaseError):
            if self.catalog.has_duties:
                self.publisher.publish()

    def _publish_last(self) -> None:
        """As the engine closes."""
        self.publish()

    def forget_gone(self) -> None:
        """Takes what is in memory of queries and tables that the catalog does not have any more out of it, whoever dropped them."""
        if self._queries is not None:
            self._queries.forget_gone()
        parts = (
            self.delivery,
            self._progress,
            self._constants,
            self.maintenance,
            self.compactor,
            self.reader,
        )
        for part in parts:
            part.forget_gone()
        if self._reading is not None:
            self._reading.forget_gone()
        if self._publisher is not None:
            self._publisher.forget_gone()

    def _settle_last(self) -> None:
        """Before the duties are given back; another process that took them meanwhile does this."""
        with suppress(LeaseError):
            if self._queries is not None and self.catalog.has_duties:
                self._queries.groups.settle()

    def prepare(self, *queries: str) -> None:
        """Has maintenance prepare the plans of queries that will be refreshed."""
        state = self.catalog.state
        self.maintenance.note_query(*(owner(state, name) for name in queries))

    def _prepare(self, query: str, many: bool) -> bool:
        """In its thread, for few or for many rows; False where nobody has needed Spark yet."""
        if self._spark_session.started is None:
            return False
        self.queries.refreshes.prepare(query, many)
        return True

    def _recent_queries(self) -> list[str]:
        """The queries that were refreshed last, the last one first, as far as they are prepared at a start."""
        state, catalog = self.catalog.state, self.catalog
        names = [*(q.name for q in state.queries.values() if q.group is None), *state.groups]
        last = {name: catalog.status(name).last_refresh for name in names}
        used = sorted(((at, name) for name, at in last.items() if at is not None), reverse=True)
        return [name for _, name in used[: catalog.limits.prepare_queries]]

    @entry
    def compact(self, table: str) -> None:
        """Writes all of a table's snapshot files anew, with its changes, in their order (COMPACT TABLE)."""
        self.check_writable()
        with suppress(LeaseError):  # which may have gone elsewhere
            if self.catalog.has_duties:
                found = apply.find_table(self.catalog.state, table)
                check_snapshot(found, "COMPACT TABLE")
                self.compactor.compact(found.storage)
                self.publish()
                return
        self.ask("execute", sql=f"COMPACT TABLE {quote(table)}", restricted=True)

    @entry
    def maintain(self) -> list[str]:
        """Does now what is done in the background: merges the changes of tables where many have come together.

        Returns the names of the tables.
        """
        self.check_writable()
        return list(self.ask("maintain")["tables"])

    @entry
    def vacuum(self, name: str | None = None, retain: str | None = None) -> Vacuumed:
        """Publishes, and forgets the versions of a table or continuous query, or of all, that nobody can ask for any
        more (VACUUM). `retain` such as '36 hours' takes the place of every declared retention; files of what is
        forgotten stay for ten minutes more, with '0 hours' not at all.

        Raises CatalogError for an unknown name, AnalysisError where `retain` is no length of time.
        """
        from cq_engine.maintenance.retention import Vacuumed

        self.check_writable()
        return Vacuumed(**self.ask("vacuum", name=name, retain=retain))

    def _vacuum(self, name: str | None, retain: str | None) -> Vacuumed:
        from cq_engine.maintenance.retention import vacuum

        length = None if retain is None else parse_retention(retain)
        self.queries.groups.settle(whole=True)
        troubles = Troubles()
        with troubles.of("publishing"):  # what is not published stays
            self.publish()
        grace = 0.0 if length is not None and not length else None
        done = vacuum(self.services, self.conf, name, length, grace=grace)
        troubles.check("VACUUM")
        return done
