"""Checks of a unit on this host, before it is written: what would keep systemd from starting it."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .service_unit import ServiceUnit

#: A service with PrivateTmp has its own; code and state of the host's are hidden from it.
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))
#: The user that stands for one that systemd allocates: neither owner nor in a group.
OTHERS = 65_534
#: Prints where a module is, without an import. Arguments: the working directory, the name. Until the name is looked up,
#: the program's own folder is not on the path: its files must not replace those of the standard library here.
FIND_MODULE = """
import sys
del sys.path[0]
import importlib.util
sys.path.insert(0, sys.argv[1])
spec = importlib.util.find_spec(sys.argv[2])
if spec is not None:
    print(spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), ""))
"""


@dataclass(frozen=True, slots=True)
class Findings:
    """problems: what keeps a unit from starting, each with its remedy. warnings: what systemd advises against."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check(unit: ServiceUnit) -> Findings:
    """Check a unit on this host; one for a user's manager is only looked at by systemd, and its module looked up."""
    module = _Module.of(unit)
    problems = [] if module.path else [module.missing(unit)]
    if not unit.user_manager:
        problems += _of_this_host(unit, module)
    starts, lines = _systemds_answer(unit)
    return Findings((*problems, *(() if starts else lines)), lines if starts else ())


@dataclass(frozen=True, slots=True)
class _Module:
    """The top-level module of the topology. path: its file, or the folder of a namespace package; None if not found."""

    name: str
    path: Path | None
    error: str = ""

    @classmethod
    def of(cls, unit: ServiceUnit) -> _Module:
        name = unit.topology.partition(":")[0].partition(".")[0]
        command = (unit.python, "-c", FIND_MODULE, unit.working_directory, name)
        service_environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        try:
            done = subprocess.run(command, env=service_environment, capture_output=True, text=True, check=False)
        except OSError as error:
            return cls(name, None, f": {error.strerror}")
        where = done.stdout.strip()
        return cls(name, Path(where) if where else None, f": {done.stderr.strip()}" if done.returncode else "")

    def missing(self, unit: ServiceUnit) -> str:
        return (
            f"The module {self.name} of {unit.topology} is neither in the working directory {unit.working_directory} "
            f"nor installed for {unit.python}{self.error}. Is the name right? Name its folder with "
            "--working-directory, or install it."
        )


def _of_this_host(unit: ServiceUnit, module: _Module) -> Iterator[str]:
    """Yield the problems with the paths and the user of a service of the system."""
    yield from _of_temporary_folders(unit, module)
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
        yield from _of_access(unit, module, account)


def _of_temporary_folders(unit: ServiceUnit, module: _Module) -> Iterator[str]:
    used = {"working directory": unit.working_directory, "interpreter": unit.python, "configuration": unit.config_file}
    if module.path:
        used["module"] = module.path
    if not unit.config.is_default("state.dir"):
        used["state.dir"] = Path(unit.config["state.dir"])
    for name, path in (used | unit.named_files).items():
        target = path.resolve()
        if any(place.is_relative_to(folder) for place in (path, target) for folder in TEMPORARY):
            link = "" if target == path else f" -> {target}"
            yield (
                f"The {name} {path}{link} is below a folder for temporary files, and the service has its own "
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
    elif path.is_dir():
        return
    elif os.path.lexists(path):  # also a link to nothing
        yield f"state.dir={path} is not a folder. Name one, {remedy}"
    else:
        owner = unit.run_as or "USER"
        yield (
            f"state.dir={path} does not exist, and the service cannot make it (systemd's 226/NAMESPACE). Run "
            f"`install -d -m 750 -o {owner} {shlex.quote(str(path))}`, {remedy}"
        )


def _account(run_as: str) -> dict[str, object]:
    """Return the user of the service as arguments of subprocess.run. Raises KeyError for an unknown one."""
    if not run_as:
        return {"user": OTHERS, "group": OTHERS, "extra_groups": []}
    found = pwd.getpwuid(int(run_as)) if run_as.isdigit() else pwd.getpwnam(run_as)
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": groups}


def _of_access(unit: ServiceUnit, module: _Module, account: dict[str, Any]) -> Iterator[str]:
    """Try to reach each path as the user of the service, which only root can do."""
    if os.geteuid() != 0:
        return
    needed = [("-x", unit.working_directory), ("-x", unit.python), ("-r", unit.config_file)]
    needed += [("-r", path) for path in (module.path, *unit.named_files.values()) if path]
    if not unit.config.is_default("state.dir") and Path(unit.config["state.dir"]).is_dir():
        needed.append(("-w", Path(unit.config["state.dir"])))
    who = f"The user {unit.run_as}" if unit.run_as else "The user that systemd allocates (DynamicUser)"
    remedy = "Change its permissions, or those of a folder above it" + ("." if unit.run_as else ", or use --run-as.")
    for flag, path in needed:
        if path.exists() and subprocess.run(["test", flag, str(path)], check=False, **account).returncode:
            yield f"{who} cannot {'write to' if flag == '-w' else 'reach'} {path}. {remedy}"


def _systemds_answer(unit: ServiceUnit) -> tuple[bool, tuple[str, ...]]:
    """Return whether systemd would start the unit, and what `systemd-analyze verify` says about it, if installed.

    It also says what it only advises against; its exit status is that of errors.
    """
    if shutil.which("systemd-analyze") is None:
        return True, ()
    manager = ["--user"] if unit.user_manager else []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / unit.file_name).write_text(unit.text())
        command = ["systemd-analyze", *manager, "verify", f"./{unit.file_name}"]
        environment = {"XDG_RUNTIME_DIR": folder} | os.environ
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if unit.file_name in line]  # not about other units
    return not done.returncode, tuple(dict.fromkeys(lines))
