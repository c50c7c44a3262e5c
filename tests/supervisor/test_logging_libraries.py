"""Log records of a user's module arrive once, with level, logger and fields, whichever library it uses."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import worker_targets
from broker_stage import wait_for_line
from stage import LogLines, MakeApplication

from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.source.topology_source import TopologySource
from tests.examples import one_of
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[2]
#: Ways in which a module may set up its log. Each defines ``log``, and may write to a separate file.
STDLIB = "import logging\n{}log = logging.getLogger('user.code')\n"
SETUPS = {
    "nothing": STDLIB.format(""),
    "basicConfig": STDLIB.format("logging.basicConfig(level='DEBUG', format='mine %(message)s')\n"),
    "basicConfig to a file": STDLIB.format("logging.basicConfig(filename='own.log', level='INFO')\n"),
    "dictConfig": STDLIB.format(
        """import logging.config
logging.config.dictConfig({
    "version": 1,
    "formatters": {"mine": {"format": "mine %(asctime)s %(message)s"}},
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "mine", "stream": "ext://sys.stdout"},
        "file": {"class": "logging.FileHandler", "filename": "own.log"},
    },
    "root": {"level": "INFO", "handlers": ["console", "file"]},
})
"""
    ),
    "own handlers": """
import logging, sys
log = logging.getLogger("user.code")
log.addHandler(logging.StreamHandler())
log.addHandler(logging.StreamHandler(sys.stdout))
log.addHandler(logging.FileHandler("own.log"))
""",
    "not propagated": """
import logging
log = logging.getLogger("user.code")
log.propagate = False
log.addHandler(logging.StreamHandler())
""",
    "a queue": """
import logging, logging.handlers, queue, sys
waiting = queue.SimpleQueue()
listener = logging.handlers.QueueListener(waiting, logging.StreamHandler(sys.stderr))
listener.start()
logging.getLogger().addHandler(logging.handlers.QueueHandler(waiting))
log = logging.getLogger("user.code")
""",
    "loguru": "from loguru import logger as log\nlog.add('own.log')\n",
    "loguru, configured": """
import sys
from loguru import logger as log
log.remove()
log.add(sys.stderr, format="mine {time} {message}", level="INFO", colorize=True)
log.add("own.log", serialize=True)
""",
    "structlog": "import structlog\nlog = structlog.get_logger()\n",
    "structlog, configured": """
import logging, structlog
structlog.configure(
    processors=[structlog.stdlib.add_log_level, structlog.stdlib.render_to_log_kwargs],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
)
log = structlog.get_logger("user.code")
""",
    "structlog with its formatter": """
import logging, structlog
structlog.configure(
    processors=[structlog.stdlib.add_log_level, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
)
handler = logging.StreamHandler()
handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=structlog.dev.ConsoleRenderer()))
logging.getLogger().addHandler(handler)
log = structlog.get_logger("user.code")
""",
}
FILES = {name for name, setup in SETUPS.items() if "own.log" in setup}
#: Its log records: a warning with a field, and an exception, in a function that is called after the import.
FIELD = {
    "loguru": "log.bind(order_id=17).warning('a warning')",
    "structlog": "log.warning('a warning', order_id=17)",
    "logging": "log.warning('a warning', extra={'order_id': 17, 'level': 'high'})",
}
USE = """
from penstock import StreamsBuilder
def topology():
    {field}
    log.debug("too much detail")
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("a failure")
    print("printed")
    raise KeyError("enough")
"""


def command(folder: Path) -> list[str]:
    """Return the command line that runs ``app:topology`` of a folder, without a broker."""
    settings = {"application.id": "a", "bootstrap.servers": "127.0.0.1:1", "state.dir": str(folder / "state")}
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    return [sys.executable, "-m", "penstock.cli", "run", "app:topology", *options]


def logged(folder: Path, module: str, form: str = "json") -> tuple[str, str]:
    """Run a module until its topology fails; return stdout and the log."""
    (folder / "app.py").write_text(textwrap.dedent(module))
    done = subprocess.run(
        [*command(folder), "-c", f"penstock.log.format={form}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.TOPOLOGY, done.stderr
    return done.stdout, done.stderr


def module_for(setup: str) -> str:
    library = next((name for name in ("loguru", "structlog") if setup.startswith(name)), "logging")
    return SETUPS[setup] + USE.format(field=FIELD[library])


@pytest.mark.parametrize("setup", one_of(4, SETUPS))
def test_records_arrive_once_with_level_logger_and_fields(tmp_path: Path, setup: str) -> None:
    stdout, log = logged(tmp_path, module_for(setup))
    assert stdout == "printed\n"
    records: list[dict[str, Any]] = [json.loads(line) for line in log.splitlines()]
    assert "too much detail" not in log
    assert "stderr:" not in log
    (warning,) = [record for record in records if "a warning" in record["message"]]
    assert (warning["message"], warning["level"], warning["order_id"]) == ("a warning", "WARNING", 17)
    assert warning["logger"] == ("user.code" if "user.code" in SETUPS[setup] else "app")
    assert warning["process"].endswith("-StreamThread-1")
    if "extra=" in module_for(setup):  # a logger of Penstock
        assert warning["level_"] == "high"
    (failure,) = [record for record in records if "a failure" in record["message"]]
    assert (failure["message"], failure["level"]) == ("a failure", "ERROR")
    assert failure["exception"].endswith("ZeroDivisionError: division by zero")
    if setup in FILES:
        own = (tmp_path / "own.log").read_text()
        assert own.count("a warning") >= 1
        assert "ZeroDivisionError" in own


@pytest.mark.parametrize("setup", ["nothing", "dictConfig", "loguru, configured", "structlog"])
def test_readable_logs_have_penstocks_format(tmp_path: Path, setup: str) -> None:
    _, log = logged(tmp_path, module_for(setup), "plain")
    (line,) = [line for line in log.splitlines() if "a warning" in line]
    field = " order_id=17" if setup == "structlog" else ""
    assert line[24:] == f"WARNING a warning{field} ({'app' if 'user.code' not in SETUPS[setup] else 'user.code'})"
    assert log.count("ZeroDivisionError: division by zero") == 1


def test_penstocks_lines_survive_a_configuration_that_disables_them(tmp_path: Path) -> None:
    module = SETUPS["dictConfig"] + (
        "import threading\n"
        "def topology():\n"
        "    threading.Thread(target=threading.Event().wait).start()\n"
        "    raise KeyError('enough')\n"
    )
    _, log = logged(tmp_path, module)
    assert "ends by force" in log  # penstock.supervisor.processes.worker_process


def test_fields_that_json_cannot_encode_become_text(tmp_path: Path) -> None:
    module = """
        import logging
        class Order:
            def __repr__(self): return "an order"
            __str__ = __repr__
            def __reduce__(self): raise TypeError("never leaves this process")
        circle = []
        circle.append(circle)
        fields = {"order": Order(), "many": [Order(), {"a": (1, 2)}], "circle": circle, "time": 5}
        def topology():
            logging.getLogger("user.code").warning("fields", extra=fields)
            raise KeyError("enough")
    """
    _, log = logged(tmp_path, module)
    (found,) = [line for line in map(json.loads, log.splitlines()) if line["message"] == "fields"]
    assert (found["order"], found["many"]) == ("an order", ["an order", {"a": [1, 2]}])
    assert (found["circle"], found["time_"]) == ("[[...]]", 5)


def test_errors_are_in_the_status_with_any_configuration(
    application: MakeApplication, log: LogLines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs_an_error.py").write_text(module_for("dictConfig"))
    monkeypatch.syspath_prepend(tmp_path)
    app = application(
        1, target=worker_targets.loads_its_topology, topology=TopologySource(reference="logs_an_error:topology")
    )
    assert app.ends() == ExitCode.TOPOLOGY
    assert "user.code" in [error.logger for error in app.supervisor.errors.all()]
    assert log.has("a failure")


def test_child_processes_log_and_end_too(tmp_path: Path) -> None:
    """Forked children share the pipe to the supervisor, in which their records would mix; and they must handle
    SIGTERM.
    """
    module = """
        import logging, multiprocessing
        logging.basicConfig(level="INFO")
        def work(number):
            for line in range(200):
                logging.getLogger("child").warning("line %d of %d %s", line, number, "x" * 500)
        def topology():
            fork = multiprocessing.get_context("fork")
            children = [fork.Process(target=work, args=(number,)) for number in range(3)]
            for child in children:
                child.start()
            work(3)
            for child in children:
                child.join()
            for _ in range(20):
                waiting = fork.Process(target=fork.Event().wait)
                waiting.start()
                waiting.terminate()  # before it has begun
                waiting.join()
            raise KeyError("enough")
    """
    _, log = logged(tmp_path, module, "plain")
    assert log.count("x" * 500) == 4 * 200
    assert "supervisor failed" not in log


def test_printed_text_appears_at_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import logging\n"
        "from penstock import StreamsBuilder\n"
        "topology = StreamsBuilder()\n"
        "topology.stream('in').to('out')\n"
        "print('printed')\n"
        "logging.getLogger('user.code').warning('has printed')\n"
    )
    pipe = subprocess.PIPE
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    with subprocess.Popen(command(tmp_path), cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True) as run:
        try:
            wait_for_line(run, "has printed")
            assert run.stdout is not None
            assert select.select([run.stdout], [], [], PATIENCE_SECONDS)[0]
            assert run.stdout.readline() == "printed\n"
        finally:
            run.kill()
