"""The configuration of an application from its file, the environment and the command line, in rising precedence."""

from __future__ import annotations

import difflib
import logging
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.clients.connection.secret_file import SecretFile
from penstock.topology.config.config_def import is_secret
from penstock.topology.config.config_keys import KEYS
from penstock.topology.config.streams_config import (
    COMMON_CLIENT_PREFIXES,
    PREFIXES,
    StreamsConfig,
    check_key,
    environment_name,
)
from penstock.topology.errors import ConfigError

logger = logging.getLogger(__name__)

VARIABLE_PREFIX = "PENSTOCK_"
#: Suffix of a secret key: the value is in this file (Docker's and Kubernetes' secrets, systemd's credentials).
SECRET_FILE = ".file"
#: Variables of the command itself, not configuration keys.
RESERVED_VARIABLES = frozenset({"PENSTOCK_CONFIG", "PENSTOCK_MAVEN_URL"})
#: Set by Kubernetes and Docker in each container for a service named penstock or penstock-….
_SERVICE_LINK = re.compile(
    r"PENSTOCK_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_LINKED_PORT = re.compile(r"(tcp|udp|sctp)://.+")
_KEY_OF_VARIABLE = {environment_name(key): key for key in KEYS}
_PREFIX_OF_VARIABLE = {environment_name(prefix): prefix for prefix in (*PREFIXES, *COMMON_CLIENT_PREFIXES)}


def load_config(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    options: Mapping[str, tuple[str, object]] | None = None,
) -> StreamsConfig:
    """Return the configuration with the origin of each value. Raises ConfigError.

    file: TOML; nested tables stand for dotted keys. environment: PENSTOCK_COMMIT_INTERVAL_MS sets commit.interval.ms.
    assignments: ``key=value`` of -c. options: key -> (name of a command-line option, value), with the highest
    precedence. In each of them ``<secret key>.file`` names a file that holds the value.
    """
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    sources = (_from_file(file), _from_environment(environment or {}), _from_assignments(assignments))
    for source in sources:
        for key, value, origin in map(_from_secret_file, source):
            check_key(key, origin)
            values[key], origins[key] = value, origin
    for key, (option, value) in (options or {}).items():
        values[key], origins[key] = value, option
    return StreamsConfig(values, origins)


Setting = tuple[str, Any, str]


def _from_secret_file(setting: Setting) -> Setting:
    """Return a setting; ``<secret key>.file`` sets that key to the file's text without its line end.

    Kafka clients read it again when they connect: the file may be renewed.
    """
    key, path, origin = setting
    secret = key.removesuffix(SECRET_FILE)
    if secret == key or not is_secret(secret):
        return setting
    try:
        text = SecretFile.read(Path(path).absolute())
    except (OSError, UnicodeDecodeError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"The file {path} of {key} ({origin}) cannot be read: {reason}.") from error
    if not text:
        raise ConfigError(f"The file {path} of {key} ({origin}) is empty.")
    return secret, text, f"{origin}: {path}"


def _from_file(file: Path | None) -> Iterator[Setting]:
    if file is None:
        return
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))  # as TOML is, whatever the locale
    except OSError as error:
        raise ConfigError(
            f"The configuration file {file} cannot be read: {error.strerror}. --config, or PENSTOCK_CONFIG, names it."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {file} is not valid TOML: {error}.") from error
    seen = set()
    for key, value in _flat(tables):
        if key in seen:
            raise ConfigError(f"{file} sets {key} twice: once as a dotted name, once as a table.")
        seen.add(key)
        yield key, value, str(file)


def _flat(table: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _from_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    for variable, value in sorted(environment.items()):
        if variable.startswith(VARIABLE_PREFIX) and variable not in RESERVED_VARIABLES:
            if _is_service_link(variable, value):
                logger.debug("%s is ignored: it is the address of a service", variable)
            elif (key := _key_of(variable)) is not None:
                yield key, value, variable


def _is_service_link(variable: str, value: str) -> bool:
    if variable.endswith("_PORT") and _LINKED_PORT.fullmatch(value):
        return True
    return variable not in _KEY_OF_VARIABLE and _SERVICE_LINK.fullmatch(variable) is not None


def _key_of(variable: str) -> str | None:
    """Return the key that an environment variable sets; None, with a warning, if there is no such key.

    No error: others may set variables that begin with PENSTOCK_ in a container.
    """
    if variable in _KEY_OF_VARIABLE:
        return _KEY_OF_VARIABLE[variable]
    stem = variable.removesuffix("_FILE")
    if stem in _KEY_OF_VARIABLE and is_secret(_KEY_OF_VARIABLE[stem]):
        return _KEY_OF_VARIABLE[stem] + SECRET_FILE
    for start, prefix in _PREFIX_OF_VARIABLE.items():
        if variable.startswith(start) and variable != start:
            return prefix + variable.removeprefix(start).lower().replace("_", ".")
    names = {name.removeprefix(VARIABLE_PREFIX): name for name in _KEY_OF_VARIABLE}
    nearest = difflib.get_close_matches(variable.removeprefix(VARIABLE_PREFIX), names, n=1)
    advice = f" Did you mean {names[nearest[0]]}?" if nearest else " `penstock config --all` lists all keys."
    logger.warning("The environment variable %s sets no known configuration key.%s", variable, advice)
    return None


def _from_assignments(assignments: Iterable[str]) -> Iterator[Setting]:
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"-c {assignment}: write -c key=value, e.g. -c commit.interval.ms=1000.")
        yield key.strip(), value, "-c"
