"""The Helm chart: its manifests, if helm is installed; otherwise that it fits the
application's defaults and metrics.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.supervisor.http import endpoints
from penstock.supervisor.source.config_loader import load_config
from penstock.topology.config.config_keys import KEYS
from tests.operator_tools import tool
from tests.walls import PROMETHEUS_NAME, shown_metrics

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "penstock"
TEMPLATES = "\n".join(path.read_text() for path in sorted((CHART / "templates").glob("*")))
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
CONFIG = '"application.id" = "word-counts"\n"bootstrap.servers" = "kafka:9092"\n'
SETTINGS = {
    "image": {"repository": "registry.example/word-counts", "tag": "1.0"},
    "topology": "word_counts:topology",
    "config": CONFIG,
    "env": [{"name": "PENSTOCK_SASL_PASSWORD_FILE", "value": "/secrets/kafka"}],
    **{name: {"enabled": True} for name in ("serviceMonitor", "alerts", "dashboard", "autoscaling")},
}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The chart's manifests with everything enabled, by kind."""
    values = tmp_path_factory.mktemp("chart") / "values.json"
    values.write_text(json.dumps(SETTINGS))
    lint, template = ["lint", "--strict", str(CHART)], ["template", "counts", str(CHART), "--namespace", "apps"]
    for command in (lint, template):
        done = subprocess.run([tool("helm"), *command, "--values", values], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    found = [document for document in yaml.safe_load_all(done.stdout) if document]
    return {f"{document['kind']} {document['metadata']['name']}": document for document in found}


def test_the_kinds_of_manifests(rendered: dict[str, dict[str, Any]]) -> None:
    kinds = (
        "ConfigMap",
        "Secret",
        "Service",
        "StatefulSet",
        "PodDisruptionBudget",
        "ServiceMonitor",
        "PrometheusRule",
        "ScaledObject",
    )
    assert {name.split()[0] for name in rendered} == set(kinds)
    assert "replicas" not in rendered["StatefulSet counts-penstock"]["spec"], "KEDA decides"
    rules = rendered["PrometheusRule counts-penstock"]["spec"]
    assert rules == yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    shown = json.loads(rendered["ConfigMap counts-penstock-dashboard"]["data"]["penstock.json"])
    assert shown["title"] == "Penstock"


def test_the_pod(rendered: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    pod = rendered["StatefulSet counts-penstock"]["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    (container,) = pod["containers"]
    assert container["args"] == ["run", "word_counts:topology"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]} | {"state"}
    # The application accepts this environment and this file.
    (tmp_path / "penstock.toml").write_text(rendered["ConfigMap counts-penstock"]["data"]["penstock.toml"])
    (tmp_path / "token").write_text("x" * 20)
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    environment |= {"PENSTOCK_HTTP_TOKEN_FILE": str(tmp_path / "token")}
    del environment["PENSTOCK_SASL_PASSWORD_FILE"], environment["PENSTOCK_CONFIG"]
    config = load_config(tmp_path / "penstock.toml", environment)
    assert (config["state.dir"], config["penstock.http.port"], config["penstock.log.format"]) == (
        "/state",
        8080,
        "json",
    )


def test_pods_do_not_scale_while_state_is_restored(rendered: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """By promtool: lag adds pods; during a restore their number stays, as it does with a Prometheus that has no lag."""
    trigger = rendered["ScaledObject counts-penstock"]["spec"]["triggers"][0]["metadata"]
    series = 'job="counts-penstock", namespace="apps"'
    pods = [f'kafka_stream_alive_stream_threads{{{series}, instance="{name}"}}' for name in "ab"]
    lag = f"kafka_consumer_fetch_manager_records_lag{{{series}}}"
    restoring = f"kafka_stream_state_updater_active_restoring_tasks{{{series}}}"
    alive = [{"series": pod, "values": "2x10"} for pod in pods]
    cases = [
        ("lag", [{"series": lag, "values": "400000x10"}, {"series": restoring, "values": "0x10"}], 400_000),
        ("restore", [{"series": lag, "values": "400000x10"}, {"series": restoring, "values": "3x10"}], 100_000),
        ("no lag", [{"series": restoring, "values": "0x10"}], 100_000),
    ]
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [*given, *alive],
            "promql_expr_test": [
                {"expr": trigger["query"], "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": expected}]}
            ],
        }
        for name, given, expected in cases
    ]
    file = tmp_path / "scaling_test.yaml"
    file.write_text(json.dumps({"evaluation_interval": "1m", "rule_files": [], "tests": tests}))
    done = subprocess.run([tool("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert trigger["threshold"] == "50000", "of two pods 100,000 are what asks for two"


def test_values_that_templates_use_exist() -> None:
    for name in set(re.findall(r"\.Values\.([A-Za-z.]+)", TEMPLATES)):
        found: Any = VALUES
        for part in name.split("."):
            assert part in found, f".Values.{name}"
            found = found[part]


def test_the_pod_has_a_longer_grace_period_than_the_application() -> None:
    needed_ms = sum(KEYS[key].default for key in ("penstock.shutdown.timeout.ms", "penstock.worker.abort.grace.ms"))
    assert VALUES["terminationGracePeriodSeconds"] * 1000 > needed_ms


def test_probes_use_existing_endpoints() -> None:
    paths = set(re.findall(r"httpGet: \{path: (\S+),", TEMPLATES))
    assert paths == {"/health/live", "/health/ready"}
    served = Path(endpoints.__file__).read_text()
    assert not [path for path in paths if f'"{path}"' not in served]


def test_autoscaling_uses_existing_metrics() -> None:
    """tests/workers/test_walls.py compares shown_metrics() with a stream thread."""
    (query,) = re.findall(r'define "penstock.scalingQuery".*?end \}\}', TEMPLATES, re.DOTALL)
    used = set(PROMETHEUS_NAME.findall(query))
    assert len(used) == 3
    assert used <= shown_metrics()


def test_the_chart_gets_its_version_from_the_release(tmp_path: Path) -> None:
    """As .github/workflows/release.yml packages it."""
    command = ["package", str(CHART), "--version", "0.1.0-dev7-g1234abc", "--destination", str(tmp_path)]
    done = subprocess.run([tool("helm"), *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["penstock-0.1.0-dev7-g1234abc.tgz"]
