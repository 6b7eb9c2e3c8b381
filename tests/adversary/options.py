"""What the programs without Spark are asked for: the worlds to play."""

from __future__ import annotations

import argparse

__all__ = ["worlds_to_play"]


def worlds_to_play(about: str | None) -> list[tuple[int, str]]:
    """The numbers of the worlds, with their seeds, from the command line."""
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", default="1")
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--worlds", type=int, default=20)
    given = options.parse_args()
    return [(world, f"{given.seed}/{world}") for world in range(given.first, given.first + given.worlds)]
