"""bin/audit: its arguments for pip-audit, tested without network access."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Replaces python3: its virtual environment has a pip and a pip-audit that print their arguments.
PYTHON = """\
#!/bin/sh
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho pip "$@"\\n' > "$3/bin/pip"
printf '#!/bin/sh\\necho pip-audit "$@"; exit 1\\n' > "$3/bin/pip-audit"
chmod +x "$3/bin/pip" "$3/bin/pip-audit"
"""


def test_the_pinned_tool_checks_all_pins_and_gives_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python3").write_text(PYTHON)
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    done = subprocess.run(
        [ROOT / "bin" / "audit", "--format", "json"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    installs, audits = done.stdout.splitlines()
    assert re.fullmatch(r"pip install .*pip-audit==[\d.]+", installs)
    assert audits == "pip-audit --strict --no-deps --disable-pip --requirement constraints.txt --format json"
    assert done.returncode == 1
    assert not list((tmp_path / "tmp").iterdir()), "the environment is deleted"


def test_every_package_is_pinned_exactly() -> None:
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    packages = [line for line in lines if line and not line.startswith("#")]
    assert len(packages) > 40
    assert [
        line for line in packages if not re.match(r"[\w.\-]+(\[[\w,\-]+\])?==\d[\w.]*( *;.*)?( *#.*)?$", line)
    ] == []
