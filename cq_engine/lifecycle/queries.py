"""What works on the continuous queries of an engine, each part made once."""

from __future__ import annotations

from collections.abc import Callable

from cq_engine.catalog.model import ContinuousQuery
from cq_engine.context.services import Services
from cq_engine.definition.registry import Registry
from cq_engine.delivery.delivery import Delivery
from cq_engine.groups.attach import Attacher
from cq_engine.groups.constants import Constants
from cq_engine.groups.groups import Groups
from cq_engine.groups.progress import Progress
from cq_engine.lifecycle.refreshes import Refreshes
from cq_engine.lifecycle.results import Results
from cq_engine.refresh.refresh import Refresh, Refresher

__all__ = ["Queries"]


class Queries:
    """The parts that `create`, `alter`, `redefine`, `drop` and `draining` take.

    Args:
        services: what every part needs.
        delivery: serves destinations.
        constants: the constants of query groups, which the reader knows.
        progress: which members of query groups have deltas, which the delivery knows.
        refreshed: told of every refresh.
        detached: told of every query that was a member of a group and is to be scheduled by itself, with the group.
    """

    def __init__(
        self,
        services: Services,
        delivery: Delivery,
        constants: Constants,
        progress: Progress,
        *,
        refreshed: Callable[[Refresh], None],
        detached: Callable[[str, str], None],
    ) -> None:
        self.services = services
        self.delivery = delivery
        self.registry = Registry(services)
        self.refresher = Refresher(services)
        self.groups = Groups(
            self.registry, self.refresher, delivery, constants, progress,
            refreshed=refreshed, detached=detached,
        )  # fmt: skip
        self.attacher = Attacher(self.groups)
        self.results = Results(self.registry, self.groups)
        self.refreshes = Refreshes(self.registry, self.refresher, self.groups, delivery, refreshed)

    def forget_gone(self) -> None:
        """Takes what is in memory of queries and groups that the catalog does not have any more out of it."""
        self.refresher.forget_gone(self.registry.forget_gone())
        self.attacher.forget_gone()
        self.results.forget_gone()

    def find(self, name: str) -> ContinuousQuery:
        """The definition. Raises CatalogError."""
        return self.registry.find(name)
