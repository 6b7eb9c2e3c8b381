"""The window of MESHJOIN: the queue Q of batches, and the cyclic scan that they share (Polyzotis et al., ICDE 2007, section 3.1, Figure 4).

A batch enters where the scan stands, meets each page of its own image of the table exactly once, and expires then, after one cycle. The images of
two batches may differ, because the table is compacted meanwhile: a page is a row group of a file that never changes, the scan goes through the
pages of all images in one order, and a batch meets those of its own. A page that no batch needs is not read; where nothing is queued, the scan stands still.

It knows pages by name only and reads nothing, so that everything about it can be tested without files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Batch", "Image", "Page", "Window"]


class Page(NamedTuple):
    """A part of the table that is read at once: a row group of a file."""

    file: str
    group: int


class Image:
    """The pages of a table at one version, in the order of the scan."""

    def __init__(self, pages: Iterable[Page]) -> None:
        self.pages = tuple(sorted(set(pages)))
        self._places = {page: n for n, page in enumerate(self.pages)}

    def __len__(self) -> int:
        return len(self.pages)

    def place(self, page: Page) -> int | None:
        """Where a page stands; None where it is not of the image."""
        return self._places.get(page)


class Batch:
    """Changes that enter and expire together; `needed` says which pages of their image they have to meet (default: all)."""

    def __init__(self, image: Image, needed: npt.NDArray[np.bool_] | None = None) -> None:
        self.image = image
        self.left = np.ones(len(image), np.bool_) if needed is None else needed.copy()
        self.remaining = int(np.count_nonzero(self.left))

    @property
    def expired(self) -> bool:
        """Has it met every page that it needs?"""
        return self.remaining == 0


_Batch = TypeVar("_Batch", bound=Batch)


class Window(Generic[_Batch]):
    """The queued batches, oldest first, and where the scan stands."""

    def __init__(self) -> None:
        self.queue: list[_Batch] = []
        self.cursor = Page("", -1)
        """The page that was met last."""
        self._needs: dict[int, tuple[Image, npt.NDArray[np.int32]]] = {}
        """By image, how many batches have still to meet each page."""

    @property
    def nbytes(self) -> int:
        """What it knows of pages takes."""
        return sum(needs.nbytes for _, needs in self._needs.values())

    def enter(self, batch: _Batch) -> None:
        """Appends a batch. One that needs no page has expired already."""
        self.queue.append(batch)
        _, needs = self._needs.setdefault(
            id(batch.image), (batch.image, np.zeros(len(batch.image), np.int32))
        )
        needs += batch.left

    def leave(self, batch: _Batch) -> None:
        """Takes a batch out, whether it has expired or is given up."""
        if not any(each is batch for each in self.queue):
            return
        self.queue = [each for each in self.queue if each is not batch]
        image, needs = self._needs[id(batch.image)]
        needs -= batch.left
        if not any(each.image is image for each in self.queue):
            del self._needs[id(image)]

    def next_pages(self, most: int) -> list[Page]:
        """The next pages of the scan that a batch needs: at most so many, of one file, one after the other; none: it stands still."""
        best: list[Page] | None = None
        for image, needs in self._needs.values():
            wanted = np.flatnonzero(needs)
            if not len(wanted):
                continue
            after = np.searchsorted(wanted, bisect_right(image.pages, self.cursor))
            first = int(wanted[after % len(wanted)])
            pages = _run(image.pages, needs, first, most)
            if best is None or self._distance(pages[0]) < self._distance(best[0]):
                best = pages
        return best or []

    def _distance(self, page: Page) -> tuple[bool, Page]:
        """How far the scan has to go to a page: those behind it come in the next round."""
        return page <= self.cursor, page

    def meet(self, page: Page) -> list[_Batch]:
        """The batches that meet the page now, which is noted. The scan goes on behind it."""
        met: list[_Batch] = []
        for image, needs in self._needs.values():
            place = image.place(page)
            if place is None or not needs[place]:
                continue
            for batch in self.queue:
                if batch.image is image and batch.left[place]:
                    batch.left[place] = False
                    batch.remaining -= 1
                    met.append(batch)
            needs[place] = 0
        self.cursor = page
        return met


def _run(pages: Sequence[Page], needs: npt.NDArray[np.int32], first: int, most: int) -> list[Page]:
    """From `first` on the pages of its file that somebody needs, without a gap."""
    end = first
    while end < len(pages) and end - first < most and pages[end].file == pages[first].file and needs[end] > 0:
        end += 1
    return list(pages[first:end])
