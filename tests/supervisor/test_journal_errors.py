"""An error that ends the command reaches systemd's journal with the priority of an error, wherever it occurs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from broker_stage import ROOT

from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.medium

NEEDED = ("-c", "application.id=a", "-c", "bootstrap.servers=127.0.0.1:9")
MODULES = {"broken.py": "1 / 0\n", "fine.py": "from penstock import StreamsBuilder\ntopology = StreamsBuilder()\n"}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("run", "fine:topology", "--no-such-option"), 2, "--no-such-option"),
        (("run", "fine:topology", "-c", "no.such.key=1"), 2, "no.such.key"),
        (("run", "fine:topology", "--config", "none.toml"), 2, "none.toml cannot be read"),
        (("run", "fine:topology", *NEEDED, "-c", "state.dir=broken.py/x"), 2, "check state.dir"),
        (("run", "fine.py", *NEEDED), 3, "leave .py out"),
        (("describe", "broken:topology"), 3, "ZeroDivisionError"),
        (("status", *NEEDED), 3, "No application runs"),
    ],
)
def test_an_error_has_its_priority(arguments: tuple[str, ...], code: int, text: str, tmp_path: Path) -> None:
    for name, module in MODULES.items():
        (tmp_path / name).write_text(module)
    with (tmp_path / "journal").open("w") as journal:
        found = os.fstat(journal.fileno())
        environment = os.environ | {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "penstock.cli", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, stderr=journal, env=environment, check=False, timeout=PATIENCE_SECONDS
        )
    lines = (tmp_path / "journal").read_text().splitlines()
    assert done.returncode == code, lines
    assert any(line.startswith("<3>") and text in line for line in lines), lines
    assert not any("Error" in line for line in lines if not line.startswith("<3>")), lines
