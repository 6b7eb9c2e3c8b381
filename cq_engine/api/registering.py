"""The façade's part about what a program hands over: callbacks, and functions for SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from cq_engine.api.upkeep import Upkeep
from cq_engine.catalog.destinations import deliverers
from cq_engine.catalog.model import DeclaredDestination
from cq_engine.context.functions import PythonFunction
from cq_engine.destinations import Callback, Callbacks, check_declared
from cq_engine.lifecycle.draining import has_news

__all__ = ["Registering"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Registering(Upkeep):
    """What an engine gets from its program; a base of `Engine`, which has the parts."""

    callbacks: Callbacks
    _check_open: Callable[[], None]

    def callback(
        self, name: str, *, batch: str | None = None, concurrency: int | None = None
    ) -> Callable[[Callback], Callback]:
        """Registers the decorated function, which may be `async`, as callback `name`: it gets a DeltaBatch per commit.

        Args:
            name: as in DESTINATION CALLBACK.
            batch: `transaction` (a batch for each commit), `row` (for each delta) or `refresh` (for all commits of a refresh).
            concurrency: how many batches it gets at once, in order for each key. What CREATE DESTINATION says counts more.

        Raises:
            AnalysisError: one of these is not possible.
        """
        said = {"batch": batch, "concurrency": concurrency}
        options = {key: str(value) for key, value in said.items() if value is not None}
        check_declared(DeclaredDestination(name, "CALLBACK", tuple(options.items())))

        def register(function: Callback) -> Callback:
            if not self.catalog.read_only:
                self.catalog.register_callback(name)
            self.callbacks.register(name, function, options)
            for query in deliverers(self.catalog.state, name):
                self.delivery.wake(query)
            return function

        return register

    @overload
    def function(
        self, name: str, function: _Function, *, returns: str, deterministic: bool = ..., arrow: bool = ...
    ) -> _Function: ...

    @overload
    def function(
        self, name: str, *, returns: str, deterministic: bool = ..., arrow: bool = ...
    ) -> Callable[[_Function], _Function]: ...

    def function(
        self,
        name: str,
        function: _Function | None = None,
        *,
        returns: str,
        deterministic: bool = True,
        arrow: bool = False,
    ) -> _Function | Callable[[_Function], _Function]:
        """Registers a Python function for SQL under `name`: `function`, or the one that this decorates.

        It gets one row's arguments and gives one value. Queries that wait for it go on.

        Args:
            name: the name in SQL; it takes the place of an earlier Python function of that name.
            function: the function. Executors get a copy of it.
            returns: its type in Spark SQL, such as `DECIMAL(10,2)` or `ARRAY<STRING>`.
            deterministic: False where equal arguments can give different values; no continuous query may call it then.
            arrow: hand values over in Arrow batches.

        Raises:
            CatalogError: the name is that of a SQL function, or of one that Spark has.
            AnalysisError: `returns` is no type.
        """

        def register(each: _Function) -> _Function:
            self._check_open()
            made = PythonFunction(name, each, returns, deterministic, arrow)
            self.services.functions.register(made, self.catalog.state)
            if self._spark_session.started is not None:
                self.services.functions.install(self._spark_session.started, self.catalog.state)
            for query in self.catalog.state.queries.values():
                if name.lower() in query.functions and has_news(self.catalog, query):
                    self.scheduler.wake(query.group or query.name)
            return each

        return register if function is None else register(function)
