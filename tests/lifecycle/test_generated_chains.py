"""The delta law for generated queries over queries: each against its recompute from the tables."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from pyspark.sql import SparkSession

from cq_engine.core.limits import Limits
from tests.lifecycle.chains import Chain, chains, check_chain
from tests.limits import forced
from tests.oracle.budget import LARGE_RUN, budget

MODES = {
    "transactional": ("TRANSACTIONAL",),
    "compressed": ("COMPRESSED",),
    "mixed": ("COMPRESSED", "TRANSACTIONAL", "TRANSACTIONAL", "COMPRESSED"),
}


SOME = (("mixed", True),)
ALL = tuple((modes, nested) for modes in MODES for nested in (True, False))


@pytest.mark.parametrize(("modes", "nested"), ALL if LARGE_RUN else SOME)
def test_chains(spark: SparkSession, modes: str, nested: bool) -> None:
    """The first example that is drawn is the simplest one there is; those that count come after it."""

    @budget("CQ_ORACLE_EXAMPLES", 2)
    @given(chain=chains(nested, MODES[modes]))
    def check(chain: Chain) -> None:
        seed = chain.history.seed
        known = {"known_gone_rows": -1} if seed % 4 < 2 else {}
        limits = Limits(**forced(bulk=seed % 3 == 0, large=seed % 2 == 0, arrow=seed % 8 < 4), **known)
        with tempfile.TemporaryDirectory(prefix="cq_cascade_") as directory:
            check_chain(chain, spark, Path(directory), limits)

    check()
