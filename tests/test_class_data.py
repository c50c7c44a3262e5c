"""A class data archive that one JVM writes and the next one uses, with the smallest of Kafka's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.dev.class_data import ClassDataArchive, keep_archives, writes_archive
from penstock.dev.kafka_distribution import distribution, newest
from penstock.pipeline.java.java_runtime import find_java

pytestmark = pytest.mark.medium


@pytest.fixture
def class_path(tmp_path: Path) -> str:
    """Kafka's jars, with a copy of the first one."""
    first, *others = distribution(newest()).class_path().split(os.pathsep)
    return os.pathsep.join([str(shutil.copy2(first, str(tmp_path))), *others])


def run(java: Path, class_path: str, *options: str) -> str:
    command = [str(java), "-cp", class_path, *options, "kafka.tools.StorageTool", "random-uuid"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_next_start_maps_the_archive_while_the_jars_are_unchanged(
    tmp_path: Path, class_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "penstock" / "class-data"
    kept.mkdir(parents=True)
    (kept / "tool-0123456789abcdef.jsa").write_text("of older jars")
    java, own = find_java(), tmp_path / "own"
    own.mkdir()

    archive = ClassDataArchive("tool", java, class_path)
    assert archive.using() == []
    writing = archive.using_or_writing(own)
    assert writes_archive(["java", *writing])
    assert len(run(java, class_path, *writing).splitlines()) == 1, "the id, and no word of the archive"
    keep_archives(own)
    assert list(own.iterdir()) == []
    (file,) = kept.iterdir()

    using = archive.using()
    assert archive.using_or_writing(own) == using
    assert not writes_archive(["java", *using])
    loaded = run(java, class_path, *using, "-Xlog:class+load")
    assert "kafka.tools.StorageTool source: shared objects file (top)" in loaded

    os.utime(class_path.split(os.pathsep)[0], (1, 1))
    assert ClassDataArchive("tool", java, class_path).using() == []
    assert file.exists()


def test_an_archive_that_cannot_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tool-0123456789abcdef.jsa").write_text("classes")
    keep_archives(tmp_path)
    assert f"cannot write to {tmp_path}/cache/penstock/class-data" in caplog.text
