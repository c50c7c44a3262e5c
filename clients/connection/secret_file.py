"""A secret in a file, which may be renewed while clients use it: Docker's and Kubernetes' secrets, credentials."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class SecretFile(str):
    """The text of a file when it was read, as an ordinary string for callers that need no newer one.

    path: of the file. latest: its text when it was last read.
    """

    path: Path
    latest: str

    def __new__(cls, text: str, path: Path) -> SecretFile:
        """Use read() to read a file."""
        made = super().__new__(cls, text)
        made.path, made.latest = path, text
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return SecretFile, (self.latest, self.path)

    @classmethod
    def read(cls, path: Path) -> SecretFile:
        """Return a file's text without its line end. Raises OSError, UnicodeDecodeError."""
        return cls(path.read_text(encoding="utf-8").rstrip("\r\n"), path)


def newest(value: T) -> T | str:
    """Return a value; a secret from a file is read again. If it cannot be read or is empty, its latest text is kept."""
    if not isinstance(value, SecretFile):
        return value
    with suppress(
        OSError, UnicodeDecodeError
    ):  # it is being replaced; if the former text is wrong, the broker rejects it
        value.latest = SecretFile.read(value.path).latest or value.latest
    return value.latest
