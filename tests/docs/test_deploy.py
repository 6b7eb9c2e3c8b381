"""The files of deploy/ say what the command line, the packages and the health server understand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cq_engine.repl.arguments import Namespace, parse_arguments
from cq_engine.repl.health import Health

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
VALUES = {"CQ_WAREHOUSE": "s3://bucket/warehouse", "CQ_CATALOG": "postgresql://host/cq"}
"""What environments give."""


def lines(file: str) -> list[str]:
    return [line for line in (DEPLOY / file).read_text(encoding="utf-8").splitlines() if line[:1] != "#"]


def instruction(name: str) -> list[str]:
    """The words of an instruction of the Containerfile that is written as a list; of the last one."""
    found: list[str] = json.loads(
        [line for line in lines("Containerfile") if line.startswith(name)][-1][len(name) :]
    )
    return found


def setting(name: str) -> str:
    return [line for line in lines("cq.service") if line.startswith(f"{name}=")][-1].partition("=")[2]


def documents() -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))


def container() -> dict[str, Any]:
    (deployment,) = (each for each in documents() if each["kind"] == "Deployment")
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def given(words: list[str], reference: str) -> list[str]:
    """Words with the values of the variables that they refer to; one that has no value is an error."""
    return [re.sub(reference, lambda found: VALUES[found[1]], word) for word in words]


def served(words: list[str]) -> Namespace:
    options = parse_arguments(words)
    assert options.command == "serve"
    return options


def test_the_container_serves() -> None:
    assert instruction("ENTRYPOINT") == ["cq"]
    options = served(instruction("CMD"))
    (port,) = (line.split()[1] for line in lines("Containerfile") if line.startswith("EXPOSE"))
    assert options.health.endswith(f":{port}")


def test_the_container_has_extras_that_there_are() -> None:
    extras = re.search(r"/src\[([\w,]+)\]", "\n".join(lines("Containerfile")))
    assert extras
    optional = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(extras[1].split(",")) <= set(optional)


def test_what_is_installed_into_the_container_comes_with_its_context() -> None:
    """COPY takes what .dockerignore leaves: nothing that git knows, but what only tests and readers want."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    packages = {path.name for path in (ROOT / "cq_engine").iterdir() if path.is_symlink()}
    assert not {"cq_engine", "pyproject.toml", "README.md", "LICENSE", *packages} & set(ignored)
    assert {".git", ".venv"} <= set(ignored)


def test_the_unit_serves() -> None:
    binary, *words = given(shlex.split(setting("ExecStart")), r"\$\{(\w+)\}")
    assert Path(binary).name == "cq"
    options = served(words)
    assert (options.warehouse, options.catalog) == (VALUES["CQ_WAREHOUSE"], VALUES["CQ_CATALOG"])
    assert setting("Environment").partition("=")[0] == "CQ_CACHE_DIR"
    assert setting("KillMode") == "mixed"


def test_the_manifest_serves() -> None:
    found = container()
    assert {each["name"] for each in found["env"]} >= set(VALUES)
    options = served(given(found["args"], r"\$\((\w+)\)"))
    assert (options.warehouse, options.catalog) == (VALUES["CQ_WAREHOUSE"], VALUES["CQ_CATALOG"])
    ports = {each["name"]: each["containerPort"] for each in found["ports"]}
    assert options.health == f"0.0.0.0:{ports['health']}"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = found[probe]["httpGet"]
        assert asked["port"] in ports
        assert Health().answer(asked["path"])[0] != 404


def test_the_manifests_image_is_of_this_version() -> None:
    version = re.search(
        r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert version
    assert container()["image"].endswith(f":{version[1]}")


def test_units_wait_as_long_as_a_refresh_may_take_to_end() -> None:
    (deployment,) = (each for each in documents() if each["kind"] == "Deployment")
    grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace == int(setting("TimeoutStopSec"))
