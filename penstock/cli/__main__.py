"""``python -m penstock.cli``: the ``penstock`` command of this Python, e.g. in a systemd unit."""

from __future__ import annotations

from penstock.cli import main

main()
