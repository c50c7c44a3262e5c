"""Compares serdes without calling them: by their names, their settings and their code."""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from enum import Enum
from hashlib import sha256

from .serdes import Serde, UserSerde
from .shape_changes import PARTS, Shape

#: An object's address in memory does not identify its serde.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: Tokens that are not code.
_LAYOUT = (tokenize.COMMENT, tokenize.NL)
#: Hex digits of an attribute's digest. Few on purpose: the attribute may be a password, and the digest leaves the
#: process.
_SETTING_DIGITS = 4
_CODE_DIGITS = 16


def serde_name(serde: object) -> str:
    """Return a name that is the same in each process and for equal serdes."""
    return _ADDRESS.sub("", repr(serde))


def serde_shape(serde: object) -> Shape | None:
    """Return the shape of a serde's values; None if its name implies it."""
    if not isinstance(serde, Serde):
        return None
    if (shape := serde.shape()) is not None:
        return shape
    shapes = {name: serde_shape(part) for name, part in sorted(getattr(serde, "__dict__", {}).items())}
    parts = {name: shape for name, shape in shapes.items() if shape is not None}
    return {PARTS: parts} if parts else None


def serde_settings(serde: object) -> dict[str, str]:
    """Return the settings of the user's serdes in a serde: a digest of each attribute's value, by its name.

    Serdes with a ``__repr__`` are left out, because it identifies them.
    """
    return {
        name: _digest(_setting(value), _SETTING_DIGITS)
        for own in _own(serde)
        if not _says_what_it_is(own)
        for name, value in sorted(getattr(own, "__dict__", {}).items())
    }


def serde_code(serde: object) -> str:
    """Return a digest of the code of the user's serdes in a serde; empty if there are none, or no source.

    Comments, blank lines and the version of Python do not change it.
    """
    texts = [_code(type(own)) for own in _own(serde)]
    return _digest(" ".join(texts), _CODE_DIGITS) if any(texts) else ""


def _own(serde: object) -> Iterator[object]:
    """Yield the user's serdes that a serde is or contains."""
    if isinstance(serde, UserSerde):
        yield serde.serde
    elif isinstance(serde, Serde) and type(serde).__module__.startswith("penstock."):
        for part in getattr(serde, "__dict__", {}).values():
            yield from _own(part)
    elif isinstance(serde, Serde):
        yield serde


def _says_what_it_is(serde: object) -> bool:
    """Return whether a serde's class defines ``__repr__``."""
    return any("__repr__" in vars(kind) for kind in type(serde).__mro__ if kind not in (object, Serde))


def _setting(value: object) -> str:
    """Return a text that is the same in each process; it has only the type or name of anything but a plain value."""
    if isinstance(value, Enum) or value is None or isinstance(value, str | bytes | int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return str(sorted((_setting(key), _setting(one)) for key, one in value.items()))
    if isinstance(value, list | tuple):
        return str([_setting(one) for one in value])
    if isinstance(value, set | frozenset):
        return str(sorted(map(_setting, value)))
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _code(kind: type) -> str:
    try:
        tokens = tokenize.generate_tokens(io.StringIO(inspect.getsource(kind)).readline)
        return " ".join(token.string for token in tokens if token.type not in _LAYOUT)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # created by exec, written in C, or received as code
        return ""


def _digest(text: str, digits: int) -> str:
    return sha256(text.encode()).hexdigest()[:digits]
