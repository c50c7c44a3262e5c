"""What the compiled kernel knows of confluent-kafka: which librdkafka it has loaded, and where its clients keep theirs.

librdkafka's own functions are public. Not public is that its handle is the first field of confluent-kafka's clients
(``Handle`` in its confluent_kafka.h); so that is used in releases only that were looked at.
"""

from __future__ import annotations

import ctypes
from typing import Any

import confluent_kafka

#: The releases of confluent-kafka whose clients were looked at.
KNOWN = ("2.16.",)


def loaded() -> str | None:
    """Return the path of the librdkafka that this process has loaded, None if that cannot be found out."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "librdkafka" in line}
    except OSError:
        return None
    return paths.pop() if len(paths) == 1 else None


#: None: the kernel leaves confluent-kafka's clients alone.
PATH = loaded() if str(confluent_kafka.__version__).startswith(KNOWN) else None


def address_of_handle(client: Any) -> int:
    """Return where a Consumer or Producer keeps the address of librdkafka's handle."""
    return id(client) + object.__basicsize__


def handle_of(client: Any) -> int:
    """Return the address of librdkafka's handle of a Consumer or Producer, 0 if it is closed."""
    return ctypes.c_void_p.from_address(address_of_handle(client)).value or 0
