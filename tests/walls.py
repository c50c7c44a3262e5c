"""The metrics that the dashboard and the alert rules name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from deploy import dashboard
from penstock.supervisor.http.prometheus import metric_name

ALERTS = Path(__file__).resolve().parent.parent / "deploy" / "prometheus" / "alerts.yaml"
PROMETHEUS_NAME = re.compile(r"\b(?:kafka|penstock)_[a-z0-9_]+\b")


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def shown_metrics() -> set[str]:
    """Return the names, in Prometheus' spelling, of all metrics that the dashboard and the alerts name."""
    shown = {metric_name(group, name) for group, name in dashboard.metrics()}
    for rule in rules():
        alerted = set(PROMETHEUS_NAME.findall(rule["expr"]))
        assert alerted, f"{rule['alert']} looks at no metric"
        shown |= alerted
    return shown
