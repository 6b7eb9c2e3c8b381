"""The table of the kinds of destinations."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from cq_engine.catalog.model import DeclaredDestination
from cq_engine.core.errors import AnalysisError
from cq_engine.destinations import Destination, check_declared
from cq_engine.destinations.kinds import KINDS
from cq_engine.destinations.urls import account_of
from cq_engine.grammar import Script


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_known_under_the_name_that_its_cursors_have(name: str) -> None:
    assert KINDS[name].of.kind == name
    assert issubclass(KINDS[name].of, Destination)


@pytest.mark.parametrize("name", KINDS)
def test_defaults_are_possible_values(name: str) -> None:
    for option in KINDS[name].options.values():
        if option.default is not None:
            option.check(option.default)


@pytest.mark.parametrize("name", KINDS)
def test_what_must_be_said_is_missed(name: str) -> None:
    needed = [option for option, each in KINDS[name].options.items() if each.default is None]
    if not needed:
        script = Script("DELETE FROM t") if name == "TRIGGER" else None
        check_declared(DeclaredDestination("d", name, script=script))
        return
    with pytest.raises(AnalysisError, match=f"needs the option {needed[0]}"):
        check_declared(DeclaredDestination("d", name))


@pytest.mark.parametrize("kind", ["REDIS", "NATS", "RABBITMQ", "KAFKA"])
@pytest.mark.parametrize("between", list(":/@?#%&+ ;=,[]"))
def test_no_part_of_a_password_is_taken_for_something_else(kind: str, between: str) -> None:
    """One that is not escaped is understood whole, or the URL is refused, which shows nothing of it."""
    option, password = KINDS[kind].options["url"], f"one{between}two"
    for number in ("", "7"):
        url = f"{_SCHEMES[kind]}://me:{number}{password}@host:1,host:2/x".replace(
            ",host:2", ",host:2" * (kind == "KAFKA")
        )
        try:
            option.check(url)
        except ValueError:
            continue
        assert account_of(url) == ("me", unquote(f"{number}{password}"))


def test_urls_of_brokers() -> None:
    for url in ("kafka://a:1,b:2", "kafka://me:p%40w@a", "kafka://[::1]:9/?x=1"):
        KINDS["KAFKA"].options["url"].check(url)
    for url in ("kafka://", "kafka://a:x", "http://a", "kafka://a b"):
        with pytest.raises(ValueError):  # noqa: PT011 - it has no text, which could be a secret
            KINDS["KAFKA"].options["url"].check(url)


_SCHEMES = {"REDIS": "redis", "NATS": "nats", "RABBITMQ": "amqp", "KAFKA": "kafka"}
