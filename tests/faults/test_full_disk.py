"""A disk that is really full: a small file system of its own, where this account may mount one."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.trials import World

ROOMS = (0, 4096, 16_384, 40_960, 81_920)
"""Bytes that are left: less than a transaction of the catalog takes, less than a file, and more."""
STEPS = ("insert", "bulk", "stream", "bulk stream", "refresh", "publish", "merge", "vacuum", "define")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root may mount a file system")
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["/bin/umount", "--lazy", str(place)], check=True)


def test_every_step(disk: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    world = World(tmp_path, chance, warehouse=disk / "warehouse")
    failed: Counter[str] = Counter()
    for room in ROOMS:
        for step in STEPS:
            failed[step] += world.on_full_disk(step, room, disk / "ballast") is not None
    world.finish()
    assert all(failed[step] for step in STEPS if step != "merge"), failed
