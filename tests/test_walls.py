"""Dashboard, alert rules and runbook agree.

tests/workers/test_walls.py and tests/supervisor/test_http_with_broker.py check that their metrics exist.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import promql_parser
import pytest
import yaml

from deploy.dashboard import ROWS, dashboard
from tests.operator_tools import tool
from tests.test_docs import anchors
from tests.walls import ALERTS, rules

ROOT = Path(__file__).resolve().parent.parent
RUNBOOK = ROOT / "docs" / "runbook.md"


def test_the_dashboard_is_generated() -> None:
    """If it fails: python -m deploy.dashboard > deploy/grafana/penstock.json."""
    assert json.loads((ROOT / "deploy" / "grafana" / "penstock.json").read_text()) == dashboard()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_each_alert_has_a_section_in_the_runbook_and_each_section_an_alert() -> None:
    site = re.search(r'^site_url = "(.*)"$', (ROOT / "zensical.toml").read_text(), re.MULTILINE)
    assert site is not None
    links = {rule["annotations"]["runbook_url"] for rule in rules()}
    assert links == {f"{site.group(1)}runbook/#{anchor}" for anchor in anchors(RUNBOOK) - {"runbook"}}
    assert all(rule["annotations"]["runbook_url"].endswith(f"#{rule['alert'].lower()}") for rule in rules())


def test_expressions_are_promql() -> None:
    """By a parser, the only check without promtool: it does not evaluate them."""
    queries = [query for row in ROWS.values() for panel in row for query in panel.queries]
    shown = [query.expression.replace("$__rate_interval", "5m") for query in queries]
    for expression in (*shown, *(rule["expr"] for rule in rules())):
        promql_parser.parse(expression)  # raises ValueError
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        promql_parser.parse("sum by (job (x)")


def test_alerts_fire_when_they_should() -> None:
    """Prometheus' own promtool runs deploy/prometheus/alerts_test.yaml."""
    promtool = tool("promtool")
    for command, file in (("check", ALERTS), ("test", ALERTS.with_name("alerts_test.yaml"))):
        done = subprocess.run([promtool, command, "rules", file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested() -> None:
    """Without promtool this is the only check: tests of the rules exist, and have the current annotations."""
    text = ALERTS.with_name("alerts_test.yaml").read_text()
    fired = [case for test in yaml.safe_load(text)["tests"] for case in test["alert_rule_test"] if "exp_alerts" in case]
    assert {case["alertname"] for case in fired} == {rule["alert"] for rule in rules()}
