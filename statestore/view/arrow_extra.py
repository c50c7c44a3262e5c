"""The extra penstock-streams[sql], imported when it is first needed."""

from __future__ import annotations

from types import ModuleType

from penstock.topology.errors import ConfigError


def pyarrow() -> ModuleType:
    """Return pyarrow, with pyarrow.ipc. Raises ConfigError without the extra."""
    try:
        import pyarrow.ipc
    except ImportError as error:
        raise ConfigError(f"Arrow needs the extra: pip install 'penstock-streams[sql]' ({error})") from error
    found: ModuleType = pyarrow
    return found
