"""Directories of a process, which are gone after it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cq_engine.storage.scratch import _remove_left

PROCESS = """
import sys, time
from pathlib import Path
from cq_engine.storage.scratch import scratch_directory
path = scratch_directory(Path(sys.argv[1]), "cq-engine-test-") / "rows"
path.write_bytes(b"rows")
print(path, flush=True)
if sys.argv[2] == "stay":
    time.sleep(600)
"""


@contextmanager
def _process(place: Path, how: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a file in its directory, and the file."""
    command = [sys.executable, "-c", PROCESS, str(place), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_process_takes_its_directory_along(tmp_path: Path) -> None:
    with _process(tmp_path, "end") as (process, path):
        assert process.wait(60) == 0
    assert path.parent.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks of this kind")
def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    with _process(tmp_path, "stay") as (_, of_alive):
        with _process(tmp_path, "stay") as (killed, of_killed):
            killed.kill()
            killed.wait(60)
            assert of_killed.exists()
        _remove_left(tmp_path, "cq-engine-other-")
        assert of_killed.exists()
        _remove_left(tmp_path, "cq-engine-test-")
        assert not of_killed.parent.exists()
        assert of_alive.exists()
        assert sorted(tmp_path.iterdir()) == [of_alive.parent, of_alive.parent.with_suffix(".lock")]
