"""Images of touched keys at any version, beside all states of a table."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from cq_engine.sources.sweep.images import Images
from cq_engine.sources.sweep.model import Row

INDEX = (("a",), (None,))


def value(row: Row) -> Row | None:
    return None if row[1] is None else (row[1],)


@pytest.mark.parametrize("seed", range(40))
def test_images_are_the_states_of_the_table(seed: int) -> None:
    rng = random.Random(seed)
    states: list[dict[Row, Row]] = [{(k,): (k, rng.randrange(3)) for k in range(3)}]
    changes: list[Mapping[Row, tuple[Row | None, Row | None]]] = [{}]
    images, known = Images({INDEX: value}), 0
    for _ in range(60):
        if rng.random() < 0.5:
            after = dict(states[-1])
            for key in rng.sample([(k,) for k in range(6)], k=rng.randint(0, 3)):
                after.pop(key, None)
                if rng.random() < 0.7:
                    after[key] = (key[0], rng.choice((None, 0, 1, 2)))
            keys = {key for key in states[-1] | after if states[-1].get(key) != after.get(key)}
            changes.append({key: (states[-1].get(key), after.get(key)) for key in keys})
            states.append(after)
            images.add(len(states) - 1, changes[-1])
        elif rng.random() < 0.3:
            known = rng.randint(known, len(states) - 1)
            images.forget(known)
        version = rng.randint(known, len(states) - 1)
        images.move(version)
        touched = {key for change in changes[known + 1 :] for key in change}
        expected = {key: row for key, row in states[version].items() if key in touched}
        assert images._rows == expected
        assert {key for key in [(k,) for k in range(6)] if images.touched(key)} == touched
        assert len(images) == sum(map(len, changes[known + 1 :]))
        for a in range(3):
            assert dict(images.matching(INDEX, (a,))) == {
                key: row for key, row in expected.items() if row[1] == a
            }
        other = rng.randint(known, len(states) - 1)
        low, high = sorted((version, other))
        between = {key for change in changes[low + 1 : high + 1] for key in change}
        assert {key for key in touched if images.changed(key, version, other)} == between
