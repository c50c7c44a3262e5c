"""The default of state.dir: a folder of this user, or of the systemd service that the process runs in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: The folder of all applications below a folder of the user.
FOLDER = "penstock"


def default_state_dir(environment: Mapping[str, str] | None = None) -> str:
    """Return the path, which may not exist. environment: os.environ, or a test's.

    It is the StateDirectory of a systemd service, else ``$XDG_STATE_HOME/penstock``, else ``~/.local/state/penstock``.
    A user without a home that it can write to gets a folder below the one for temporary files.
    """
    environment = os.environ if environment is None else environment
    if given := environment.get("STATE_DIRECTORY"):  # systemd.exec(5): several are separated by colons
        return given.split(":")[0]
    if os.path.isabs(state_home := environment.get("XDG_STATE_HOME", "")):
        return os.path.join(state_home, FOLDER)
    home = environment.get("HOME") or os.path.expanduser("~")
    if os.path.isabs(home) and os.access(home, os.W_OK | os.X_OK):
        return os.path.join(home, ".local", "state", FOLDER)
    return os.path.join(tempfile.gettempdir(), f"{FOLDER}-{os.geteuid()}")


def earlier_default_state_dir() -> Path:
    """Return the former default, which all users of a host shared."""
    return Path(tempfile.gettempdir(), FOLDER)
