"""Without pyarrow, what needs it is left out, and the last lines of the run say so."""

from __future__ import annotations

import importlib.util
from typing import Any

NEED_PYARROW = ["test_wake_up.py", "test_settings_and_records.py"]
collect_ignore = [] if importlib.util.find_spec("pyarrow") else NEED_PYARROW


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was left out."""
    if collect_ignore:
        terminalreporter.write_line(f"SKIPPED for want of pyarrow (pip install 'penstock[spark]'): {collect_ignore}")
