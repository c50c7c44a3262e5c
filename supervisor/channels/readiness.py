"""Waits for several pipes at a time."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class Readiness:
    """What multiprocessing.connection.wait does, for a loop: it registers objects only when they have changed.

    Registered are numbers of descriptors, so a closed one whose number another one has now needs no care.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._registered: frozenset[int] = frozenset()

    def wait(self, sources: Iterable[FileDescriptorLike], timeout_ms: int) -> set[FileDescriptorLike]:
        """Return the sources that are readable, or closed at the other end; {} after the timeout.

        sources: descriptors, or objects with ``fileno``.
        """
        by_descriptor = {source if isinstance(source, int) else source.fileno(): source for source in sources}
        if by_descriptor.keys() != self._registered:
            self._poll = select.poll()
            for descriptor in by_descriptor:
                self._poll.register(descriptor, select.POLLIN)
            self._registered = frozenset(by_descriptor)
        return {by_descriptor[descriptor] for descriptor, _ in self._poll.poll(timeout_ms)}
