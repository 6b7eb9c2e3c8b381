"""Every form of a delta, and both pre-images, give the same deltas: the delta law on histories with foreign keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.oracle import plans
from tests.oracle.budget import budget
from tests.oracle.generate import History
from tests.oracle.shop import shop_histories
from tests.oracle.test_delta_rules import run
from tests.oracle.warehouse import Tally, check_in_fresh_warehouse

TALLY = Tally()
FORMS = ("form = 'auto'", "form = 'general'", "form = 'fk_pk'", "form = 'fk_pk_units'", "form = 'recompute'")
PRE_IMAGES = ("pre_image = 'undo'", "pre_image = 'sql'")


def test_before_images_from_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta plans whose row versions take what changed from the table's image, not from its before-images."""
    right = plans.history_sql
    monkeypatch.setattr(plans, "history_sql", lambda *given: right(*given, undo=False))
    monkeypatch.setattr(plans, "UNDO", False)

    @budget("CQ_ORACLE_PLAN_EXAMPLES", 4)
    @given(history=shop_histories("ENFORCED", queries=4, transactions=(3, 6)))
    def check(history: History) -> None:
        run(history)

    check()


def test_forms_over_enforced_keys(spark: SparkSession) -> None:
    @budget("CQ_ORACLE_EXAMPLES", 1)
    @given(
        history=shop_histories("ENFORCED", queries=2, transactions=(3, 4)),
        form=st.sampled_from(FORMS),
        pre_image=st.sampled_from(PRE_IMAGES),
    )
    def check(history: History, form: str, pre_image: str) -> None:
        check_in_fresh_warehouse(history, spark, TALLY, f"{form}, {pre_image}")

    check()
    print(f"so far: {TALLY}")
