"""Definition of a configuration key: its type, default and valid values (Kafka: ``ConfigDef``)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from ..errors import ConfigError

#: ``module:attribute``: a user's object, imported where it is used.
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

#: Key suffixes of values that are never shown.
_SECRET = re.compile(r"(password|secret|token|jaas\.config|\.pem|credentials?|\.user\.info|passphrase)$", re.IGNORECASE)


class ConfigType(Enum):
    """The type of a value; the text names the expected type in errors."""

    BOOLEAN = "true or false"
    INT = "a whole number"
    MILLISECONDS = "a whole number of milliseconds or a timedelta"
    STRING = "text"
    PATH = "a path"
    LIST = "a list, or text with commas between the items"
    CLASS = "an object, or module:attribute"


@dataclass(frozen=True, slots=True)
class Valid:
    """A check of values of the right type; ``expected`` describes the valid values in errors."""

    expected: str
    accepts: Callable[[Any], bool]


def at_least(lowest: int) -> Valid:
    """Return the check that a number is at least ``lowest``."""
    return Valid(f"{lowest} or more", lambda value: value >= lowest)


def between(lowest: int, highest: int) -> Valid:
    """Return the check that a number is in an inclusive range."""
    return Valid(f"from {lowest} to {highest}", lambda value: lowest <= value <= highest)


def one_of(*words: str) -> Valid:
    """Return the check that a text is one of these words."""
    return Valid("one of " + ", ".join(words), lambda value: value in words)


def matches(pattern: str, expected: str) -> Valid:
    """Return the check that the whole text matches a regular expression."""
    compiled = re.compile(pattern)
    return Valid(expected, lambda value: compiled.fullmatch(value) is not None)


@dataclass(frozen=True, slots=True)
class DerivedDefault:
    """A default that depends on other keys; ``why`` is shown as its origin."""

    why: str
    value: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A row of the table of configuration keys.

    words: accepted text -> its value, case-insensitive (enum words, Kafka's class names).
    client: "consumer" or "producer" for a key of that client, which may also have the client's prefixes.
    deprecated_for: the newer key that uses this one's value if it is not set itself.
    no_effect: accepted for compatibility with Kafka Streams' configurations, but unused; the documentation gives the
        reason.
    """

    name: str
    type: ConfigType
    default: Any
    documentation: str
    valid: Valid | None = None
    words: Mapping[str, str] | None = None
    client: str | None = None
    deprecated_for: str | None = None
    no_effect: bool = False

    @property
    def expected(self) -> str:
        """The description of valid values in errors."""
        if self.type is ConfigType.CLASS and self.words:
            return f"one of {', '.join(sorted(set(self.words.values())))}, {self.type.value}"
        if self.words:
            return "one of " + ", ".join(sorted(set(self.words.values())))
        return f"{self.type.value}, {self.valid.expected}" if self.valid else self.type.value

    def parse(self, given: object, name: str | None = None, origin: str | None = None) -> Any:
        """Return the typed value of a text or typed value; raises ConfigError.

        name, origin: for the message: the name that the user wrote, if it differs from the key's, and its source.
        """
        if given is None or (given == "" and self.default is None):
            return None
        try:
            value = self._convert(given)
        except (ValueError, TypeError):
            raise self._wrong(given, name, origin) from None
        if self.valid is not None and not self.valid.accepts(value):
            raise self._wrong(given, name, origin)
        return value

    def _convert(self, given: object) -> object:
        if self.no_effect and self.type is ConfigType.CLASS:
            return given  # a class of Java
        if self.words and isinstance(given, str):
            return self._word(given.strip(), self.words)
        return _CONVERT[self.type](given)

    def _word(self, text: str, words: Mapping[str, str]) -> object:
        short = re.split(r"[.$]", text)[-1] if ":" not in text else text  # drop Java's package and outer class
        for word, value in words.items():
            if word.lower() in (text.lower(), short.lower()):
                return value
        if self.type is not ConfigType.CLASS:
            raise ValueError
        return _object(text)

    def _wrong(self, given: object, name: str | None, origin: str | None) -> ConfigError:
        where = f" ({origin})" if origin else ""
        shown = "***" if is_secret(self.name) else repr(given)
        return ConfigError(f"{name or self.name}={shown}{where} is not valid: expected {self.expected}.")


def is_secret(name: str) -> bool:
    """Return True for keys whose values must not be shown (passwords, key material, tokens)."""
    return _SECRET.search(name) is not None


def _boolean(given: object) -> bool:
    words = {True: True, False: False, "true": True, "false": False}
    key = given.strip().lower() if isinstance(given, str) else given
    if not isinstance(key, bool | str) or key not in words:
        raise ValueError
    return words[key]


def _whole_number(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise ValueError
    return int(given)


def _milliseconds(given: object) -> int:
    if isinstance(given, timedelta):
        return given // timedelta(milliseconds=1)
    return _whole_number(given)


def _text(given: object) -> str:
    if isinstance(given, list | tuple):
        return ",".join(_text(item) for item in given)
    if not isinstance(given, str):
        raise ValueError
    return given.strip()


def _path(given: Any) -> str:
    """Return the absolute path, so that it does not depend on the working directory of each process."""
    text = os.fspath(given)
    if not isinstance(text, str):
        raise ValueError
    return os.path.abspath(os.path.expanduser(text.strip()))


def _list(given: object) -> list[object]:
    if isinstance(given, str):
        return [item.strip() for item in given.split(",") if item.strip()]
    if not isinstance(given, list | tuple):
        raise ValueError
    return list(given)


def _object(given: object) -> object:
    if isinstance(given, str) and not REFERENCE.fullmatch(given):
        raise ValueError
    return given


_CONVERT: Mapping[ConfigType, Callable[[Any], object]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.INT: _whole_number,
    ConfigType.MILLISECONDS: _milliseconds,
    ConfigType.STRING: _text,
    ConfigType.PATH: _path,
    ConfigType.LIST: _list,
    ConfigType.CLASS: _object,
}
