"""Checks of a unit on this host, before it is written: what would keep systemd from starting it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .service_unit import ServiceUnit

#: A service with PrivateTmp has its own; code and state of the host's are hidden from it.
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))
#: The user that stands for one that systemd allocates: neither owner nor in a group.
OTHERS = 65_534


def problems(unit: ServiceUnit) -> Iterator[str]:
    """Yield what keeps the unit from starting, each with its remedy; for a user's manager only what systemd says."""
    if not unit.user_manager:
        yield from _of_temporary_folders(unit)
        yield from _of_the_state_dir(unit)
        yield from _of_named_files(unit)
        try:
            account = _account(unit.run_as)
        except KeyError:
            yield (
                f"There is no user {unit.run_as} on this host (systemd's 217/USER). Create it, e.g. with `useradd "
                f"--system {unit.run_as}`, or leave out --run-as."
            )
        else:
            yield from _of_access(unit, account)
    yield from _of_systemd(unit)


def _of_temporary_folders(unit: ServiceUnit) -> Iterator[str]:
    code = {"working directory": unit.working_directory, "interpreter": unit.python, "configuration": unit.config_file}
    if not unit.config.is_default("state.dir"):
        code["state.dir"] = Path(unit.config["state.dir"])
    for name, path in (code | unit.named_files).items():
        if any(path.is_relative_to(folder) for folder in TEMPORARY):
            yield (
                f"The {name} {path} is below a folder for temporary files, and the service has its own "
                "(PrivateTmp=yes; systemd's 200/CHDIR). Move it, e.g. below /srv."
            )


def _of_named_files(unit: ServiceUnit) -> Iterator[str]:
    for key, path in unit.named_files.items():
        if not path.exists():
            yield f"{key}={path} does not exist."


def _of_the_state_dir(unit: ServiceUnit) -> Iterator[str]:
    if unit.config.is_default("state.dir"):
        return
    given = os.fspath(unit.config.originals()["state.dir"]).strip()
    path = Path(unit.config["state.dir"])
    remedy = "or leave state.dir out: systemd then makes and keeps a folder for the service (StateDirectory)."
    if not os.path.isabs(given):
        yield f"state.dir={given} depends on the folder or the home of a process: write the whole path, {remedy}"
    elif not path.is_dir():
        owner = unit.run_as or "USER"
        yield (
            f"state.dir={path} does not exist, and the service cannot make it (systemd's 226/NAMESPACE). Run "
            f"`install -d -m 750 -o {owner} {path}`, {remedy}"
        )


def _account(run_as: str) -> dict[str, object]:
    """Return the user of the service as arguments of subprocess.run. Raises KeyError for an unknown one."""
    if not run_as:
        return {"user": OTHERS, "group": OTHERS, "extra_groups": []}
    found = pwd.getpwuid(int(run_as)) if run_as.isdigit() else pwd.getpwnam(run_as)
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": groups}


def _of_access(unit: ServiceUnit, account: dict[str, Any]) -> Iterator[str]:
    """Try to reach each path as the user of the service, which only root can do."""
    if os.geteuid() != 0:
        return
    needed = [("-x", unit.working_directory), ("-x", unit.python), ("-r", unit.config_file)]
    needed += [("-r", path) for path in unit.named_files.values()]
    if not unit.config.is_default("state.dir") and Path(unit.config["state.dir"]).is_dir():
        needed.append(("-w", Path(unit.config["state.dir"])))
    who = f"The user {unit.run_as}" if unit.run_as else "The user that systemd allocates (DynamicUser)"
    remedy = "Change its permissions, or those of a folder above it" + ("." if unit.run_as else ", or use --run-as.")
    for flag, path in needed:
        if path.exists() and subprocess.run(["test", flag, str(path)], check=False, **account).returncode:
            yield f"{who} cannot {'write to' if flag == '-w' else 'reach'} {path}. {remedy}"


def _of_systemd(unit: ServiceUnit) -> Iterator[str]:
    """Yield what `systemd-analyze verify` says about the unit, if it is installed."""
    if shutil.which("systemd-analyze") is None:
        return
    manager = ["--user"] if unit.user_manager else []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / unit.file_name).write_text(unit.text())
        command = ["systemd-analyze", *manager, "verify", f"./{unit.file_name}"]
        environment = {"XDG_RUNTIME_DIR": folder} | os.environ
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    yield from (line for line in done.stderr.splitlines() if unit.file_name in line)  # not about other units
