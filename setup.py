"""What setup.cfg cannot say: the compiled kernel, what it is compiled with, and the version of a shallow clone.

The kernel is compiled by the machine's C compiler, by Zig's where there is none. So this file is the build backend,
too: setuptools', which also asks for Zig then. versioningit imports it for `describe_clone`, which is here because all
that builds Penstock has setup.py: a clone, an sdist and a container image.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.build_meta import *  # noqa: F403  the hooks of a build backend
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

PROCESSORS = os.cpu_count() or 1
#: A C compiler that comes as a Python package.
ZIG = "ziglang == 0.17.1"
SEE = "See docs/installation.md."


def describe_clone(*, project_dir, params):
    """Describe the commit as versioningit does; a shallow clone that does not reach back to a tag is of no version.

    The state of the latter is ``shallow``, or ``shallow-dirty``: [tool.versioningit.format] has their versions.
    """
    from versioningit.git import describe_git
    from versioningit.logging import log

    described = describe_git(project_dir=project_dir, params=params)
    if described.tag == params["default-tag"] and is_shallow(project_dir):
        described.state = "shallow-dirty" if "dirty" in described.state else "shallow"
        log.warning(
            "This clone is shallow and has no tag of a version, so the version is unknown. "
            "Run `git fetch --unshallow --tags`, and build or install again."
        )
    return described


def is_shallow(folder):
    """Return whether the history of a clone is cut off, as by `git clone --depth 1`."""
    command = ["git", "rev-parse", "--is-shallow-repository"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip() == "true"


def get_requires_for_build_wheel(config_settings=None):
    """Return what a wheel is built with beside pyproject.toml's; raises SystemExit without Python's headers."""
    require_headers()
    return [] if has_compiler() else [ZIG]


get_requires_for_build_editable = get_requires_for_build_wheel


def has_compiler():
    """Return whether the machine has the C compiler of $CC, or else the one that Python was built with."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(compiler.split()[0]) is not None


def require_headers():
    """Raise SystemExit if Python's headers are missing: no compiler brings them."""
    folder = sysconfig.get_path("include")
    if not Path(folder, "Python.h").exists():
        raise SystemExit(
            f"Penstock's kernel cannot be compiled: {folder} has no Python.h. Install Python's headers, with "
            f"`apt install python3-dev` or `dnf install python3-devel`. {SEE}"
        )


def use_zig():
    """Compile with Zig's C compiler; raises SystemExit if it is not installed."""
    if find_spec("ziglang") is None:
        raise SystemExit(
            "Penstock's kernel cannot be compiled: there is no C compiler, and no ziglang, a Python package with one. "
            f"Install either. {SEE}"
        )
    # Debian's Python has a header in /usr/include, and would link with options that Zig refuses. With -O0 Zig would add
    # a sanitizer, whose memory for each thread is more than a library can have that is loaded later.
    zig = f"{sys.executable} -m ziglang cc -idirafter /usr/include -fno-sanitize=undefined"
    os.environ |= {"CC": zig, "LDSHARED": f"{zig} -shared"}


class BuildKernel(build_ext):
    """Compiles the kernel, or ends the build with one sentence that says why that is impossible."""

    def run(self):
        """Compile all modules that are not up to date."""
        require_headers()
        if not has_compiler():
            use_zig()
        try:
            super().run()
        except (CompileError, LinkError) as error:
            raise SystemExit(
                f"Penstock's kernel cannot be compiled: the C compiler failed. Its messages are above. {SEE}"
            ) from error


def kernel():
    """Return the extension modules."""
    from Cython.Build import cythonize

    # What $CFLAGS says of it counts: a compiler heeds the last option.
    optimization = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"]
    return cythonize(
        [
            Extension(
                f"penstock.kernel.{Path(source).stem}",
                [source],
                # All of them are in the sdist too; the declarations where cimport looks for penstock.kernel.
                depends=[source, *sorted(glob("penstock/kernel/*.pxd")), *sorted(glob("kernel/*.h"))],
                extra_compile_args=optimization,
            )
            for source in sorted(glob("kernel/*.pyx"))
        ],
        language_level=3,
        nthreads=PROCESSORS,
    )


if __name__ == "__main__":
    # The modules are translated and compiled side by side.
    setup(ext_modules=kernel(), cmdclass={"build_ext": BuildKernel}, options={"build_ext": {"parallel": PROCESSORS}})
