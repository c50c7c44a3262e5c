"""What setup.cfg cannot say: the compiled kernel, built where Cython and a C compiler are, and else left out."""

import os
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize
except ImportError:
    cythonize = None

if cythonize is None or os.environ.get("PENSTOCK_KERNEL") == "off":
    extensions = []
else:
    # What $CFLAGS says of it counts: a compiler heeds the last option.
    OPTIMIZATION = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"]
    extensions = cythonize(
        [
            Extension(
                f"penstock.kernel.{Path(source).stem}",
                [source],
                # All of them are in the sdist too; the declarations where cimport looks for penstock.kernel.
                depends=[source, *sorted(glob("penstock/kernel/*.pxd")), *sorted(glob("kernel/*.h"))],
                extra_compile_args=OPTIMIZATION,
            )
            for source in sorted(glob("kernel/*.pyx"))
        ],
        language_level=3,
    )
    for extension in extensions:
        extension.optional = True  # cythonize() would forget it

setup(ext_modules=extensions)
