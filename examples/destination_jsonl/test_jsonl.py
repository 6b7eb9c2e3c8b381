"""The engine's contract for destinations, over JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

from cq_engine_jsonl import JsonLines

from cq_engine.destinations.contract import Line, SinkContract


class TestJsonLines(SinkContract):
    sink = JsonLines

    def options(self, target: Path) -> dict[str, str]:
        return {"path": str(target / "deltas.jsonl")}

    def received(self, target: Path) -> list[Line]:
        file = target / "deltas.jsonl"
        deltas = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
        return [(d["version"], d["marker"], (d["new"] or d["old"])["id"]) for d in deltas]

    def break_down(self, target: Path) -> None:
        target.rmdir()

    def repair(self, target: Path) -> None:
        target.mkdir()
