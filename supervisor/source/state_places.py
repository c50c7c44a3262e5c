"""Where an application's state may be on this host if its configuration does not set state.dir.

`penstock run` uses the default. Other commands also find the state of a service, which systemd keeps in the service's
StateDirectory.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.topology.config.state_dir_default import earlier_default_state_dir
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError

logger = logging.getLogger(__name__)

#: Marks that the application belongs to Spark: `penstock handover` writes and deletes it.
HANDED_OVER_FILE_NAME = "handed-over.json"
#: Where systemd keeps the state of the system's services (systemd.exec(5), StateDirectory).
SYSTEM_STATE = Path("/var/lib")
#: The name of a service's StateDirectory is this and the service's name.
SERVICE_PREFIX = "penstock-"


def application_directory(config: StreamsConfig) -> Path:
    """Return the directory of an application's state, whether it exists or not."""
    return Path(config["state.dir"], config["application.id"])


def state_dirs(config: StreamsConfig) -> list[Path]:
    """Return the folders that may be the application's state.dir, the configured or default one first.

    Those of services follow if state.dir is not set. Without an application.id they are those of all services.
    """
    first = Path(config["state.dir"])
    if not config.is_default("state.dir"):
        return [first]
    return [first, *(path for path in _of_services() if _may_have(path, config["application.id"]))]


def _of_services() -> Iterator[Path]:
    home = Path(os.path.expanduser("~"))
    state = Path(os.environ.get("XDG_STATE_HOME") or home / ".local/state")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")  # of users' managers before systemd 254
    for folder in (SYSTEM_STATE, state, config):
        yield from sorted(folder.glob(f"{SERVICE_PREFIX}*"))


def _may_have(folder: Path, application_id: str | None) -> bool:
    """Return whether a service's folder has, or by its name may have, the application: it may be unreadable."""
    if application_id is None or folder.name == SERVICE_PREFIX + application_id:
        return True
    return os.path.isdir(folder / application_id)


def located(config: StreamsConfig) -> StreamsConfig:
    """Return the configuration with the state.dir that has the application's state; unchanged if none has."""
    for folder in state_dirs(config):
        if os.path.isdir(folder / config["application.id"]):
            return config if str(folder) == config["state.dir"] else _with(config, folder)
    return config


def _with(config: StreamsConfig, folder: Path) -> StreamsConfig:
    return config.with_overrides({"state.dir": str(folder)}, "StateDirectory of the service")


def left_behind(config: StreamsConfig) -> str:
    """Return a message if the application's state is in the former default of state.dir only, otherwise ""."""
    earlier, new = _earlier(config), application_directory(config)
    if not config.is_default("state.dir") or new.exists() or not _is_ours(earlier):
        return ""
    return (
        f"{earlier} has state of {earlier.name}, but this folder is no longer the default of state.dir. To keep the "
        f"state, stop the application and run `mkdir -p {new.parent} && mv {earlier} {new}`, or set "
        f"state.dir={earlier.parent}; otherwise it is restored from its changelogs into {new}"
    )


def warn_of_state_left_behind(config: StreamsConfig) -> None:
    """Log the message of left_behind.

    Raises ConfigError if the application was handed over to Spark: it must not start without knowing that.
    """
    text = left_behind(config)
    if text and (_earlier(config) / HANDED_OVER_FILE_NAME).exists():
        raise ConfigError(f"The application was handed over to Spark. {text}")
    if text:
        logger.warning("%s", text)


def refuse_checkpoint_left_behind(config: StreamsConfig, name: str) -> None:
    """Raise ConfigError if a Spark checkpoint of this name is in the former default of state.dir only."""
    text = left_behind(config)
    if text and (_earlier(config) / name).exists():
        raise ConfigError(f"Without its checkpoint the application would start from the beginning. {text}")


def _earlier(config: StreamsConfig) -> Path:
    return Path(earlier_default_state_dir(), config["application.id"])


def _is_ours(folder: Path) -> bool:
    return os.path.isdir(folder) and folder.lstat().st_uid == os.geteuid()
