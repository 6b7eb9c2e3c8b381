"""How a topic is reached: the options of sources, and the settings of the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from cq_engine.catalog.model import DeclaredSource
from cq_engine.core.errors import AnalysisError, SourceUnavailableError
from cq_engine.core.variables import expand
from cq_engine.destinations.brokers.kafka import cluster_settings
from cq_engine.destinations.options import Option, seconds
from cq_engine.destinations.urls import HUSH, account_of, check_secrets
from cq_engine.sources.methods.base import Place

__all__ = ["DEBEZIUM", "KAFKA", "Address", "check", "check_debezium"]


def _word(value: str) -> None:
    if not value or value != value.strip():
        raise ValueError


def _timeout(value: str) -> None:
    if seconds(value) <= 0:
        raise ValueError


_BROKERS = "write the brokers, as in brokers = 'host:9092', or 'kafka://user:${PASSWORD}@host:9092'"
_TOPIC = "write the name of a topic, as in topic = 'orders'"
_COMMON: Mapping[str, Option] = {
    "group": Option("cq-engine", _word, "write the name of a group of consumers, as in group = 'warehouse'"),
    "timeout": Option("10 seconds", _timeout, "write a length of time, as in timeout = '5 seconds'"),
}
KAFKA: Mapping[str, Option] = {
    "brokers": Option(None, _word, _BROKERS),
    "topic": Option(None, _word, _TOPIC),
    **_COMMON,
}
DEBEZIUM: Mapping[str, Option] = {
    "path": Option("", _word, "write the directory of JSON-line files, as in path = '/data/debezium/shop'"),
    "brokers": Option("", _word, _BROKERS),
    "topic": Option("", _word, _TOPIC),
    **_COMMON,
}


def check(declared: DeclaredSource, place: Place) -> None:
    """Raises AnalysisError where a secret stands in the brokers."""
    check_secrets(_url(dict(declared.options)["brokers"]), "brokers", place)


def check_debezium(declared: DeclaredSource, place: Place) -> None:
    """Raises AnalysisError where the source is neither files nor a topic, or both."""
    given = dict(declared.options)
    if "path" in given:
        other = next((name for name in DEBEZIUM if name != "path" and name in given), None)
        if other is not None:
            raise AnalysisError(
                f"a source of files has no option {other}",
                hint="write path, or brokers and topic",
                location=place(other),
            )
        return
    for name in ("brokers", "topic"):
        if name not in given:
            topical = "brokers" in given or "topic" in given
            raise AnalysisError(
                f"a source of type debezium needs the option {name if topical else 'path'}",
                hint=DEBEZIUM[name].hint if topical else f"{DEBEZIUM['path'].hint}; or brokers and topic",
                location=place(declared.type),
            )
    check(declared, place)


def _url(brokers: str) -> str:
    return brokers if "://" in brokers else f"kafka://{brokers}"


@dataclass(frozen=True)
class Address:
    """What a client is told, with what variables stand for."""

    name: str
    url: str
    topic: str
    group: str
    timeout: float

    @classmethod
    def of(cls, declared: DeclaredSource) -> Address:
        """The address of a source. Raises SourceUnavailableError for variables that are not set."""
        reader = "the process that reads the source, whenever it does"
        defaults = {name: option.default or "" for name, option in KAFKA.items()}
        given = {**defaults, **dict(declared.options)}
        brokers, topic, group = (
            expand(given[name], SourceUnavailableError, reader) for name in ("brokers", "topic", "group")
        )
        return cls(declared.name, _url(brokers), topic, group, seconds(given["timeout"]))

    @property
    def shown(self) -> str:
        """The topic, without what is secret."""
        return f"topic {self.topic} at {urlsplit(self.url).netloc.rpartition('@')[2]}"

    def settings(self) -> dict[str, Any]:
        """Those of a consumer that keeps nothing at the brokers: where it stands is in the warehouse."""
        return {
            **cluster_settings(self.url, max(1, round(self.timeout * 1000))),
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "max.poll.interval.ms": 86_400_000,  # a commit takes as long as it takes
        }

    def without_secrets(self, said: str) -> str:
        """What a client said, with asterisks for secrets."""
        named = [value for name, value in parse_qsl(urlsplit(self.url).query) if HUSH.search(name)]
        for secret in filter(None, (*account_of(self.url), *named)):
            for each in {quote(secret, safe=""), quote(secret), secret}:
                said = said.replace(each, "***")
        return said
