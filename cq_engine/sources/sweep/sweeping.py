"""SWEEP: terms are extended along the links of the view's tree, away from the relation whose change they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cq_engine.sources.sweep.asking import Asker, Term
from cq_engine.sources.sweep.model import Link, Row, View
from cq_engine.sources.sweep.queue import Queue, Version

__all__ = ["alive", "sweep", "terms_of"]


def terms_of(queue: Queue, step: int, low: Version, high: Version) -> list[Term]:
    """The terms of a step from one state of the sources to another: one for each relation that it changes."""
    terms = []
    for relation in queue.view.relations:
        changes = queue.net(relation, low[relation.source], high[relation.source])
        signed = [
            (row, sign)
            for images in changes.values()
            for row, sign in zip(images, (-1, 1))
            if row is not None
        ]
        if signed:
            rows: dict[str, Sequence[Row]] = {relation.name: [row for row, _ in signed]}
            terms.append(Term(step, relation.name, low, high, rows, [sign for _, sign in signed]))
    return terms


def alive(terms: Sequence[Term]) -> list[Term]:
    """The terms that may still add something."""
    return [term for term in terms if all(term.rows.values())]


def sweep(asker: Asker, terms: Sequence[Term]) -> list[Term]:
    """Extends terms over all relations; what comes back has rows of each.

    A question goes over a link once, for all terms on its near side, as soon as they have the rows of its near end. One update
    of one relation has n − 1 questions, of which the left and the right sweep's are open at the same time; terms of whatever
    relations have at most 2 (n − 1) together, two for each link.
    """
    view = asker.queue.view
    behind = _behind(view)
    origins = {term.origin for term in terms}
    todo = [link for link in behind if origins & behind[link]]
    while todo:
        ready = [
            link
            for link in todo
            if not any(other.far == link.near and other.near != link.far for other in todo)
        ]
        terms = asker.kept(alive(terms))
        asker.extend([(link, [term for term in terms if term.origin in behind[link]]) for link in ready])
        todo = [link for link in todo if link not in ready]
    return asker.kept(alive(terms))


def _behind(view: View) -> Mapping[Link, frozenset[str]]:
    """By link, the relations on its near side."""
    found = {}
    for link in (link for links in view.links.values() for link in links):
        reached, todo = {link.near, link.far}, [link.near]
        for name in todo:
            for other in view.links[name]:
                if other.far not in reached:
                    reached.add(other.far)
                    todo.append(other.far)
        found[link] = frozenset(reached - {link.far})
    return found
