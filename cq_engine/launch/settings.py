"""What every session of ours has, wherever its Spark runs."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["SQL_SETTINGS", "settings_for"]

SQL_SETTINGS: Mapping[str, str] = {
    "spark.sql.ansi.enabled": "true",
    # '${env:HOME}' is text, and no variable of whoever runs a refresh.
    "spark.sql.variable.substitute": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Delta readers do not know INT96, and Spark's own default is INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # List files in the driver: a Spark job for it costs more than listing a few thousand local files.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Many small files share a task instead of being padded to 4 MB each.
    "spark.sql.files.openCostInBytes": "65536",
    # Key lists of up to 1 000 literals reach Parquet's row-group filter.
    "spark.sql.parquet.pushdown.inFilterThreshold": "1000",
    # Spark writes every plan as text for its web page, which is off; the default text has each operator in detail.
    "spark.sql.ui.explainMode": "simple",
    # TIME is behind a switch.
    "spark.sql.timeType.enabled": "true",
    # The driver reads variants from Parquet as their two binary parts, as Delta readers without VARIANT do.
    "spark.sql.variant.writeShredding.enabled": "false",
}
"""What every session of ours has; each can be changed while Spark runs."""
_SHUFFLES = {"spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2))}
"""Of a Spark on this machine: 1 to 8 cost a small refresh the same, Spark's 200 twice as much; bulk work has more by its size
(`spark.settings.wide_settings`). Elsewhere nothing is known of the cores yet, and Spark's own number stays."""


def settings_for(master: str) -> dict[str, str]:
    """The settings of a session in a Spark that `master` names."""
    return {**SQL_SETTINGS, **(_SHUFFLES if master.startswith("local") else {})}
