"""The systemd unit of one application, as text: ``penstock service`` prints, installs and recognizes it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError

from ..exit_codes import ExitCode

#: A restart would fail in the same way and needs an operator.
NEEDS_A_PERSON = (ExitCode.USAGE, ExitCode.TOPOLOGY, ExitCode.LOCKED, ExitCode.INSTALLATION)
#: Interval in which the supervisor must report that it is alive, in s. It reports twice per interval.
WATCHDOG_SECONDS = 30
#: Seconds beyond the stop timeout of its processes, for the supervisor's own end on a swapping machine.
STOP_MARGIN_SECONDS = 25
#: Delay between two starts, in s, to limit the load on a broker that restarts.
RESTART_SECONDS = 10
#: The first line of Penstock's unit; the checksum covers all following lines.
MARK = "# Written by `penstock service install`; sha256 of what follows: "
#: Users' files, hidden by ProtectHome=yes.
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """The inputs of a unit. Paths are absolute.

    name: of the application; the unit is ``penstock-<name>.service``. user_manager: for ``systemctl --user``. run_as: a
    user of the system, "" for one that systemd allocates (DynamicUser). config: the application's configuration, for
    its timeouts and its state.dir. assignments: ``key=value`` of -c.
    """

    name: str
    topology: str
    config_file: Path
    working_directory: Path
    python: Path
    config: StreamsConfig
    user_manager: bool = False
    run_as: str = ""
    assignments: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """The unit's file name."""
        return unit_file_name(self.name)

    @property
    def named_files(self) -> dict[str, Path]:
        """The files that the configuration names, such as certificates, by their keys."""
        given = {key: str(value) for key, value in self.config.originals().items() if key.endswith(".location")}
        return {key: Path(path) for key, path in given.items() if os.path.isabs(path)}

    def text(self) -> str:
        """Return the whole file. Raises ConfigError for a path that a unit cannot hold."""
        body = "\n".join(self._lines()) + "\n"
        return f"{MARK}{_sum(body)}\n{body}"

    def _lines(self) -> Iterator[str]:
        yield "# See docs/service.md for the meaning of each line, docs/operations.md for the exit codes."
        yield "# Put your own changes into a drop-in: systemctl edit " + self.file_name
        yield "[Unit]"
        yield f"Description={self.name} on Penstock"
        if not self.user_manager:
            yield "After=network-online.target"
            yield "Wants=network-online.target"
        yield "# Wait even for a broker that is away for a night: never stop restarting."
        yield "StartLimitIntervalSec=0"
        yield ""
        yield "[Service]"
        yield from self._process()
        yield ""
        yield from self._state()
        yield ""
        yield from self._life()
        yield ""
        yield from self._hardening()
        yield ""
        yield "[Install]"
        yield f"WantedBy={'default' if self.user_manager else 'multi-user'}.target"

    def _process(self) -> Iterator[str]:
        settings = [part for assignment in self.assignments for part in ("-c", assignment)]
        file = ("--config", str(self.config_file))
        command = (str(self.python), "-m", "penstock.cli", "run", self.topology, *file, *settings)
        yield "Type=notify"
        yield "NotifyAccess=main"
        yield f"WorkingDirectory={_path(self.working_directory)}"
        yield f"ExecStart={' '.join(map(_word, command))}"
        yield "# Settings and secrets of this host, e.g. PENSTOCK_SASL_PASSWORD; of mode 0600."
        yield f"EnvironmentFile=-%E/penstock/{self.name}.env"
        if not self.user_manager:
            yield f"User={self.run_as}" if self.run_as else "DynamicUser=yes"

    def _state(self) -> Iterator[str]:
        if self.config.is_default("state.dir"):
            yield f"StateDirectory=penstock-{self.name}"
            yield "StateDirectoryMode=0750"
            yield f"Environment=PENSTOCK_STATE_DIR=%S/penstock-{self.name}"
        elif not self.user_manager:
            yield f"ReadWritePaths={_listed(Path(self.config['state.dir']))}"
        yield "# RocksDB keeps its files open."
        yield "LimitNOFILE=524288"

    def _life(self) -> Iterator[str]:
        grace = self.config["penstock.shutdown.timeout.ms"] + self.config["penstock.worker.abort.grace.ms"]
        yield "# The supervisor's loop reports twice in this time that it is alive."
        yield f"WatchdogSec={WATCHDOG_SECONDS}"
        yield "# READY is sent when all processes are up; restoring state does not delay it."
        yield "TimeoutStartSec=120"
        yield "# SIGTERM to the supervisor only: it stops its processes cleanly. The rest is killed."
        yield "KillMode=mixed"
        yield "# penstock.shutdown.timeout.ms, penstock.worker.abort.grace.ms and time for the supervisor's own end."
        yield f"TimeoutStopSec={-(-grace // 1000) + STOP_MARGIN_SECONDS}"
        yield "# The supervisor replaces a process that the kernel killed for its memory; the others continue."
        yield "OOMPolicy=continue"
        yield "Restart=on-failure"
        yield f"RestartSec={RESTART_SECONDS}"
        yield f"# {', '.join(code.name for code in NEEDS_A_PERSON)}: a restart would not help; they need an operator."
        yield f"RestartPreventExitStatus={' '.join(str(int(code)) for code in NEEDS_A_PERSON)}"

    def _hardening(self) -> Iterator[str]:
        yield "# No more than a Kafka client with its own files needs."
        yield "UMask=0027"
        yield "NoNewPrivileges=yes"
        yield "LockPersonality=yes"
        yield "RestrictRealtime=yes"
        yield "RestrictSUIDSGID=yes"
        yield "RestrictNamespaces=yes"
        yield "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK"
        yield "SystemCallArchitectures=native"
        yield "SystemCallFilter=@system-service"
        yield "SystemCallErrorNumber=EPERM"
        if not self.user_manager:  # a user's manager may not create mounts
            yield "CapabilityBoundingSet="
            yield "ProtectSystem=strict"
            yield f"ProtectHome={'read-only' if self._is_in_a_home() else 'yes'}"
            yield "PrivateTmp=yes"
            yield "PrivateDevices=yes"
            yield "ProtectProc=invisible"
            for what in ("Clock", "ControlGroups", "Hostname", "KernelLogs", "KernelModules", "KernelTunables"):
                yield f"Protect{what}=yes"

    def _is_in_a_home(self) -> bool:
        used = [self.working_directory, self.python, self.config_file, *self.named_files.values()]
        if not self.config.is_default("state.dir"):
            used.append(Path(self.config["state.dir"]))
        used += [path.resolve() for path in used]  # e.g. the interpreter of a virtual environment is a link
        return any(path.is_relative_to(home) for path in used for home in HOMES)


def unit_file_name(name: str) -> str:
    """Return the file name of an application's unit."""
    return f"penstock-{name}.service"


def is_ours(text: str) -> bool:
    """Return whether a unit was written by ``text()`` and has not been changed since."""
    first, _, body = text.partition("\n")
    return first.startswith(MARK) and first.removeprefix(MARK) == _sum(body)


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _path(path: Path) -> str:
    """Return a path for a directive that takes the rest of its line literally, except for specifiers."""
    text = str(path)
    if any(character in text for character in "\n\"'\\") or text != text.strip():
        raise ConfigError(f"The path {text!r} cannot be used in a systemd unit: avoid quotes and backslashes.")
    return text.replace("%", "%%")


def _listed(path: Path) -> str:
    """Return a path for a directive that takes a list of them, separated by spaces."""
    text = _path(path)
    return f'"{text}"' if any(character.isspace() for character in text) else text


def _word(text: str) -> str:
    """Return a word of a command line: % and $ have a meaning in systemd (systemd.service(5), COMMAND LINES)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != text or not text or any(c.isspace() or c in "';" for c in text) else text
