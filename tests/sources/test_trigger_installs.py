"""What captures by triggers install at a source: who drops or alters it, who may not, and that it goes with the capture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cq_engine.core.errors import AnalysisError, CQError, SourceError
from cq_engine.core.limits import Limits
from tests.sources.shops import Shop
from tests.sources.trigger_logs import LOG, Opened, declare, installed, state
from tests.sources.writers import TABLE, Writer, here, resumed


def test_dropped_by_somebody(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    trigger = "cq_log_c" if shop.kind == "postgresql" else "cq_log_c_update"
    shop.run(f"DROP TRIGGER {trigger}" + (" ON orders" if shop.kind == "postgresql" else ""))
    shop.run("UPDATE orders SET note = 'unseen'")
    with pytest.raises(SourceError, match="not as it was") as caught:
        engine.refresh_capture("c")
    assert f"trigger {trigger} is gone" in str(caught.value)
    assert state(engine)[0] == "FAILED"
    assert here(engine) != writer.rows()
    resumed(engine, writer)


def test_made_again_by_somebody(opened: Opened, shop: Shop, written: Writer) -> None:
    if shop.kind != "postgresql":
        pytest.skip("only PostgreSQL can switch a trigger off")
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run("ALTER TABLE orders DISABLE TRIGGER cq_log_c")
    shop.run("UPDATE orders SET note = 'unseen'")
    shop.run("ALTER TABLE orders ENABLE ALWAYS TRIGGER cq_log_c")
    with pytest.raises(SourceError, match="not as it was"):
        engine.refresh_capture("c")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


def test_the_log_is_dropped(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run("DROP TABLE cq_log_c")
    with pytest.raises(SourceError, match="not as it was"):
        engine.refresh_capture("c")
    engine.execute("ALTER CAPTURE c RESUME")
    shop.run("UPDATE orders SET note = 'seen'")
    engine.refresh_capture("c")
    assert here(engine) == written.rows()


def test_a_column_is_dropped(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run("ALTER TABLE orders DROP COLUMN note")
    shop.run("UPDATE orders SET region = 'west'")  # writers go on
    with pytest.raises(SourceError, match="orders has no column note"):
        engine.refresh_capture("c")
    assert state(engine)[0] == "FAILED"


def test_columns_are_altered(opened: Opened, shop: Shop, written: Writer) -> None:
    engine, writer = opened(Limits()), written
    declare(engine, shop)
    engine.refresh_capture("c")
    shop.run("UPDATE orders SET region = 'west'")
    shop.run("ALTER TABLE orders ADD COLUMN more INT")
    shop.run("ALTER TABLE orders DROP COLUMN version")
    shop.run("UPDATE orders SET note = 'wide'")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    shop.run("UPDATE orders SET note = 'again', id = id + 1000")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()
    if shop.kind == "sqlite":
        return
    kind = {"postgresql": "ALTER COLUMN price TYPE numeric(10, 1)", "mariadb": "MODIFY price DECIMAL(10, 1)"}
    shop.run(f"ALTER TABLE orders {kind[shop.kind]}")
    with pytest.raises(SourceError, match="not as it was"):
        engine.refresh_capture("c")
    engine.execute("ALTER CAPTURE c RESUME")
    engine.refresh_capture("c")
    assert here(engine) == writer.rows()


def test_it_goes_with_the_capture(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop)
    assert len(installed(shop)) >= 4
    with pytest.raises(CQError):
        engine.execute("DROP TABLE t")
    assert len(installed(shop)) >= 4
    engine.execute("DROP TABLE t CASCADE")
    assert installed(shop) == []
    engine.execute(TABLE)
    engine.execute(LOG.format("", ""))
    with pytest.raises(CQError):
        engine.execute("DROP SOURCE shop")
    assert len(installed(shop)) >= 4
    engine.execute("DROP SOURCE shop CASCADE")
    assert installed(shop) == []
    shop.run("UPDATE orders SET note = 'nobody is told'")


def test_it_stays_where_the_source_is_gone(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    declare(engine, shop)
    engine.execute(TABLE.replace("TABLE t", "TABLE other"))
    away = {"sqlite": "sqlite:////nowhere/shop.db"}.get(shop.kind, f"{shop.kind}://cq@127.0.0.1:1/shop")
    source = engine.catalog.state.sources["shop"]
    with engine.catalog.lock, engine.catalog.write() as unit:  # as after a change of the environment
        sources = {"shop": replace(source, options=(("url", away),))}
        unit.set_state(replace(engine.catalog.state, sources=sources))
    said = engine.execute("DROP CAPTURE c").message
    assert "is still there" in said
    assert engine.execute("SHOW CAPTURES").to_arrow().num_rows == 0
    assert len(installed(shop)) >= 4
    shop.run(
        "DROP TRIGGER cq_log_c_insert" if shop.kind != "postgresql" else "DROP FUNCTION cq_log_c CASCADE"
    )
    if shop.kind != "postgresql":
        shop.run("DROP TRIGGER cq_log_c_update")
        shop.run("DROP TRIGGER cq_log_c_delete")
    shop.run("DROP TABLE cq_log_c")


def test_what_is_there_is_not_taken(opened: Opened, shop: Shop, written: Writer) -> None:
    engine = opened(Limits())
    shop.run("CREATE TABLE cq_log_c (a INT)")
    with pytest.raises(AnalysisError, match="has a table cq_log_c already"):
        declare(engine, shop)
    assert installed(shop) == ["cq_log_c"]
    with pytest.raises(AnalysisError, match=r"no log of its own|which log"):
        engine.execute("CREATE CAPTURE c INTO t FROM shop TABLE 'orders' USING LOG ON DEMAND")
    with pytest.raises(AnalysisError, match="no option on_poison"):
        engine.execute(LOG.format("", ", on_poison = 'stop'"))


def test_without_rights_in_postgresql(opened: Opened, shop: Shop, written: Writer) -> None:
    if shop.kind != "postgresql":
        pytest.skip("of PostgreSQL")
    shop.run("DROP ROLE IF EXISTS reader")
    shop.run("CREATE ROLE reader LOGIN")
    shop.run("GRANT SELECT ON orders TO reader")
    engine = opened(Limits())
    engine.execute(TABLE)
    engine.execute(f"CREATE SOURCE shop TYPE postgresql WITH (url = '{shop.url.replace('cq@', 'reader@')}')")
    for right in ("GRANT CREATE ON SCHEMA public TO reader", "GRANT TRIGGER ON orders TO reader"):
        with pytest.raises(SourceError, match="cannot be installed") as caught:
            engine.execute(LOG.format("", ""))
        assert "permission denied" in str(caught.value)
        assert installed(shop) == []
        assert engine.execute("SHOW CAPTURES").to_arrow().num_rows == 0
        shop.run(right)
    engine.execute(LOG.format("", ""))  # who does not own the table can remove it as well
    engine.refresh_capture("c")
    written.transaction()
    engine.refresh_capture("c")
    assert here(engine) == written.rows()
    engine.execute("DROP CAPTURE c")
    assert installed(shop) == []
    shop.run("DROP OWNED BY reader")
    shop.run("DROP ROLE reader")


def test_without_rights_in_mariadb(opened: Opened, shop: Shop, written: Writer) -> None:
    if shop.kind != "mariadb":
        pytest.skip("of MariaDB")
    database = shop.database.address.url.database
    shop.run("CREATE OR REPLACE USER reader")
    shop.run(f"GRANT SELECT, CREATE, DROP, INSERT, DELETE ON {database}.* TO reader")
    engine = opened(Limits())
    engine.execute(TABLE)
    engine.execute(f"CREATE SOURCE shop TYPE mariadb WITH (url = '{shop.url.replace('root@', 'reader@')}')")
    with pytest.raises(SourceError, match="cannot be installed") as caught:
        engine.execute(LOG.format("", ""))
    assert "TRIGGER command denied" in str(caught.value)
    assert installed(shop) == []
    shop.run(f"GRANT TRIGGER ON {database}.orders TO reader")
    assert "TRUNCATE at the source is not seen" in engine.execute(LOG.format("", "")).message
    engine.refresh_capture("c")
    written.transaction()
    engine.refresh_capture("c")
    assert here(engine) == written.rows()
    engine.execute("DROP CAPTURE c")
    assert installed(shop) == []


def test_cascades_of_mariadb_are_refused(opened: Opened, shop: Shop, written: Writer) -> None:
    if shop.kind != "mariadb":
        pytest.skip("of MariaDB")
    shop.run(
        "CREATE TABLE items (id INT PRIMARY KEY, oid INT, FOREIGN KEY (oid) REFERENCES orders (id) ON DELETE CASCADE)"
    )
    engine = opened(Limits())
    engine.execute("CREATE TABLE t (id INT, oid INT, PRIMARY KEY (id))")
    engine.execute(f"CREATE SOURCE shop TYPE mariadb WITH (url = '{shop.url}')")
    with pytest.raises(AnalysisError, match="changes its rows when others change"):
        engine.execute(LOG.format("", "").replace("'orders'", "'items'"))
    shop.run("DROP TABLE items")
    assert installed(shop) == []
