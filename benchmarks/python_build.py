"""Detects whether this Python was built with profile-guided optimization. As a program: exit code 0 unless it is a
plain build.

It imports only the standard library, because bin/_setup runs it before there is an environment.
"""

import sys
import sysconfig


def is_plain_build() -> bool:
    """Return True if this Python reports a build without optimizations; Debian's does not report its build."""
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return bool(sysconfig.get_config_var("PGO_PROF_USE_FLAG")) and not optimized


if __name__ == "__main__":
    sys.exit(is_plain_build())
