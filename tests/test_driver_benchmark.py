"""The benchmark of the driver measures only correct results, and prints them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import driver
from benchmarks.measure import BenchmarkError


@pytest.mark.parametrize("scenario", driver.SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("way", driver.WAYS)
def test_both_modes_give_correct_results(scenario: driver.Scenario, way: str) -> None:
    (rate,) = driver.rates(scenario, way, driver.messages(2_500), rounds=1)
    assert rate > 0


def test_a_cache_merges_the_updates_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "KEYS", 10)
    uncached, cached = driver.SCENARIOS[1:]
    given = driver.messages(2_000)
    assert len(driver.in_batches(uncached, given)[1]) == 2_000
    assert len(driver.in_batches(cached, given)[1]) < 200


@pytest.mark.parametrize("scenario", driver.SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_wrong_result_is_detected(scenario: driver.Scenario) -> None:
    _, results = driver.in_batches(scenario, driver.messages(500))
    scenario.check(500, results)
    key, value = results[-1]
    assert value is not None
    with pytest.raises(BenchmarkError):
        scenario.check(500, [*results[:-1], (key, bytes(8) if value != bytes(8) else b"\1" * 8)])


def test_it_prints_minimum_median_and_maximum() -> None:
    result = CliRunner().invoke(driver.main, ["--records", "200", "--rounds", "1"], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for word in ("five stateless operators", "windowed aggregate, cached", "record by record", "min", "median", "max"):
        assert word in result.output
