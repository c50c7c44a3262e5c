"""``penstock run --engine spark`` is killed with all its processes, and continues from its checkpoint.

Once; ``python -m tests.differential.kills`` kills again and again, and executors too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.application import Application
from tests.differential.kills import kill_the_driver

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_killed_application_goes_on_from_its_checkpoint(bootstrap_servers: str, tmp_path: Path) -> None:
    application = Application(bootstrap_servers, tmp_path)
    with application.topics():
        kill_the_driver(application, kills=1)
