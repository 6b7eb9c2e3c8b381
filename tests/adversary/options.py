"""What the programs without Spark are asked for: the worlds to play."""

from __future__ import annotations

import argparse

from tests.adversary.twists import TWISTS

__all__ = ["worlds_to_play"]


def worlds_to_play(about: str | None) -> list[tuple[int, str, list[str] | None]]:
    """The numbers of the worlds, with their seeds and what they have, from the command line."""
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", default="1")
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--worlds", type=int, default=20)
    options.add_argument(
        "--twists", nargs="*", choices=TWISTS, help="what they have; the seed says it otherwise"
    )
    given = options.parse_args()
    return [
        (world, f"{given.seed}/{world}", given.twists)
        for world in range(given.first, given.first + given.worlds)
    ]
