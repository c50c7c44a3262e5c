"""Reports an executor's installation.

It is sent to the executor as code, because one without Penstock must be able to answer: it imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: Host, version of Penstock (None: it cannot be imported), and why it cannot be imported.
Found = tuple[str, "str | None", str]


def probe(_: Iterable[object]) -> Iterator[Found]:
    """Yield what this executor has."""
    import socket

    host = socket.gethostname()
    try:
        import penstock.kernel  # noqa: F401
        import penstock_distribution
    except Exception as error:  # noqa: BLE001  the driver says it
        yield host, None, f"{type(error).__name__}: {error}"
    else:
        yield host, penstock_distribution.version(), ""
