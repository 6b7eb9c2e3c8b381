"""Where the deltas of continuous queries go: tables of the warehouse and Python callbacks, with cursors of their own.

`Destination` states the contract; `read_deltas` reads a query's delta log without one. Other packages bring types of their
own as subclasses of `Sink`, for which `Option`, `count`, `one_of`, `seconds`, `DeltaBatch` and `Delta` are public, too.
"""

from typing import TYPE_CHECKING

from cq_engine.core.lazy import attributes
from cq_engine.core.retry import Retry

if TYPE_CHECKING:
    from cq_engine.destinations.base import Delivered, Destination, cursor_name
    from cq_engine.destinations.callback import CallbackDestination
    from cq_engine.destinations.callbacks import Callback, Callbacks
    from cq_engine.destinations.dead_letters import give_up, with_dead_letters
    from cq_engine.destinations.envelope import Delta, DeltaBatch, read_deltas, result_columns
    from cq_engine.destinations.fit import check, columns_for
    from cq_engine.destinations.kinds import check_declared, class_of, reach
    from cq_engine.destinations.layout import output_frame, output_rows
    from cq_engine.destinations.log import needed_from
    from cq_engine.destinations.options import Option, Policy, count, one_of, policy_of, seconds
    from cq_engine.destinations.queues.queue import needed_by
    from cq_engine.destinations.registry import kind_of, resolve
    from cq_engine.destinations.sink import Sink
    from cq_engine.destinations.table import TableDestination
    from cq_engine.destinations.targets.target import TargetDestination
    from cq_engine.destinations.triggers.script import check_script
    from cq_engine.destinations.triggers.trigger import TriggerDestination

__all__ = [
    "Callback",
    "CallbackDestination",
    "Callbacks",
    "Delivered",
    "Delta",
    "DeltaBatch",
    "Destination",
    "Option",
    "Policy",
    "Retry",
    "Sink",
    "TableDestination",
    "TargetDestination",
    "TriggerDestination",
    "check",
    "check_declared",
    "check_script",
    "class_of",
    "columns_for",
    "count",
    "cursor_name",
    "give_up",
    "kind_of",
    "needed_by",
    "needed_from",
    "one_of",
    "output_frame",
    "output_rows",
    "policy_of",
    "reach",
    "read_deltas",
    "resolve",
    "result_columns",
    "seconds",
    "with_dead_letters",
]

__getattr__ = attributes(
    __name__,
    {
        "base": ["Delivered", "Destination", "cursor_name"],
        "callback": ["CallbackDestination"],
        "callbacks": ["Callback", "Callbacks"],
        "dead_letters": ["give_up", "with_dead_letters"],
        "envelope": ["Delta", "DeltaBatch", "read_deltas", "result_columns"],
        "fit": ["check", "columns_for"],
        "kinds": ["check_declared", "class_of", "reach"],
        "layout": ["output_frame", "output_rows"],
        "log": ["needed_from"],
        "options": ["Option", "Policy", "count", "one_of", "policy_of", "seconds"],
        "queues.queue": ["needed_by"],
        "registry": ["kind_of", "resolve"],
        "sink": ["Sink"],
        "table": ["TableDestination"],
        "targets.target": ["TargetDestination"],
        "triggers.script": ["check_script"],
        "triggers.trigger": ["TriggerDestination"],
    },
)
