"""Why some rare branches are not reached here: by reason, how the names of the branches begin."""

from __future__ import annotations

GAPS: dict[str, tuple[str, ...]] = {}
