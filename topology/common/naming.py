"""Names of nodes, stores and internal topics, as Kafka Streams generates them.

The order in which names are generated is part of the wire contract, because it determines the names of internal topics.
A user-defined name still consumes a number, so that naming one operator does not rename the operators after it.
"""

from __future__ import annotations

import re
from typing import Protocol

from ..errors import TopologyError

#: Kafka's limit for topic names; names of nodes become parts of topic names.
NAME_LENGTH_MAX = 249

_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")


class NameProvider(Protocol):
    """Generates names: the InternalStreamsBuilder, with one counter for all of them."""

    def new_processor_name(self, prefix: str) -> str:
        """Return ``<prefix><number>``."""

    def new_store_name(self, prefix: str) -> str:
        """Return ``<prefix>STATE-STORE-<number>``."""


def validate_name(name: str) -> str:
    """Return the name; raises TopologyError if it cannot be part of a topic's name (Kafka Streams: Named)."""
    if not name:
        raise TopologyError("A name must not be empty; leave it out to have one generated")
    if name in (".", ".."):
        raise TopologyError(f'A name must not be "{name}"')
    if len(name) > NAME_LENGTH_MAX:
        raise TopologyError(f"A name must not be longer than {NAME_LENGTH_MAX} characters: {name}")
    if not _LEGAL_NAME.match(name):
        raise TopologyError(f'The name "{name}" may contain only ASCII letters, digits, ".", "_" and "-"')
    return name


class Named:
    """An optional user-defined name (Kafka Streams: NamedInternal)."""

    __slots__ = ("name",)

    def __init__(self, name: str | None) -> None:
        self.name = None if name is None else validate_name(name)

    def or_generate(self, names: NameProvider, prefix: str) -> str:
        """Return the given name or a generated one; consumes a number in both cases."""
        generated = names.new_processor_name(prefix)
        return generated if self.name is None else self.name

    def suffix_or_generate(self, suffix: str, names: NameProvider, prefix: str) -> str:
        """Return the given name with a suffix, or a generated one; consumes a number in both cases."""
        generated = names.new_processor_name(prefix)
        return generated if self.name is None else validate_name(self.name + suffix)

    def suffix_or(self, suffix: str, other: str) -> str:
        """Return the given name with a suffix, or the other name; consumes no number."""
        return other if self.name is None else self.name + suffix
