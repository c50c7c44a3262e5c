"""A topology whose types and functions are in the main module: as a script, in a notebook, from stdin …"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_stage import produce, read_until
from jupyter_client.manager import KernelManager

from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

PROGRAM = (Path(__file__).parent / "main_program.py").read_text()
ORDER = {"orderId": 7, "lines": [{"sku": "a", "pieces": 1}, {"sku": "b", "pieces": 2}]}
#: The result of the program's functions: 3 pieces, doubled, at the rate that is set at the start.
PRICED = {
    "lines": [{"sku": "a", "pieces": 1, "tags": []}, {"sku": "b", "pieces": 2, "tags": []}],
    "kind": "new",
    "place": ["Rome", "?"],
    "notes": [],
    "pieces": 3,
    "total": 60,
    "orderId": 7,
}


class MainProgram:
    """The program's text for one run, and the expected result."""

    def __init__(self, folder: Path, bootstrap_servers: str, application_id: str, source: str, sink: str) -> None:
        self.folder, self.bootstrap_servers, self.sink = folder, bootstrap_servers, sink
        names = {"SERVERS": bootstrap_servers, "APPLICATION": application_id, "STATE": str(folder / "state")}
        self.text = PROGRAM
        for name, value in {"SOURCE": source, "SINK": sink, **names}.items():
            self.text = self.text.replace(f'"{name}"', repr(value))
        produce(bootstrap_servers, source, json.dumps(ORDER))

    def run(self, *command: str, text: str | None = None) -> None:
        """Run a command in the folder, with the text as its input."""
        ended = subprocess.run(
            command, cwd=self.folder, input=text, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        self.check(ended.stdout, ended.stderr)

    def check(self, output: str, log: str = "") -> None:
        assert "found True Order(lines=[Line(sku='a'" in output, output + log
        json_order = json.dumps(PRICED, separators=(",", ":"))
        assert read_until(self.bootstrap_servers, self.sink, json_order) == [json_order]

    def write(self, name: str, before: str = "") -> str:
        (self.folder / name).write_text(before + self.text)
        return name


@pytest.fixture
def program(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> MainProgram:
    return MainProgram(tmp_path, bootstrap_servers, application_id, make_topic("in"), make_topic("out"))


def test_a_script(program: MainProgram) -> None:
    program.run(sys.executable, program.write("orders.py"))


REFUSED = """
import registry

class Meta(type):
    def __init__(cls, *arguments):
        registry.FIELDS[cls.__name__] = list(arguments[2].get("__annotations__", ()))
    @property
    def fields(cls):
        return registry.FIELDS[cls.__name__]

class Model(metaclass=Meta):
    number: int

"""


def test_a_class_that_would_be_duplicated_is_refused_at_the_start(program: MainProgram) -> None:
    (program.folder / "registry.py").write_text("FIELDS = {}\n")
    text = program.text.replace("assert isinstance(order, Order)", "assert Model.fields")
    head, rest = text.split("T = TypeVar", 1)
    (program.folder / "orders.py").write_text(f"{head}{REFUSED}T = TypeVar{rest}")
    command = [sys.executable, "orders.py"]
    ended = subprocess.run(command, cwd=program.folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert (
        "TopologyLoadError: The topology cannot be loaded: TypeError: the class Model of __main__ cannot be sent to "
        "another process: its fields would be () there, not ('number',). Put it into a module, and import it from there"
        in ended.stderr
    )


def test_a_module_run_with_m(program: MainProgram) -> None:
    program.write("orders.py")
    program.run(sys.executable, "-m", "orders")


def test_from_stdin(program: MainProgram) -> None:
    program.run(sys.executable, "-", text=program.text)


def test_from_the_command_line(program: MainProgram) -> None:
    program.run(sys.executable, "-c", program.text)


def test_typed_into_an_interactive_interpreter(program: MainProgram) -> None:
    program.run(sys.executable, "-i", text=program.text)


def test_an_interactive_interpreter_after_a_script(program: MainProgram) -> None:
    script = program.text.replace("\n    run()\n", "\n    pass\n")
    (program.folder / "orders.py").write_text(script)
    program.run(sys.executable, "-i", "orders.py", text="run()\n")


def test_a_script_of_ipython(program: MainProgram) -> None:
    magic = "%config InteractiveShell.xmode = 'Plain'\n"
    program.run(sys.executable, "-m", "IPython", program.write("orders.ipy", magic))


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelManager]:
    manager = KernelManager()
    manager.start_kernel(cwd=str(tmp_path))
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def execute(kernel: KernelManager, cell: str) -> str:
    """Run a cell of a notebook; return its output. Raises AssertionError with the traceback if it fails."""
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_SECONDS)
        printed: list[str] = []
        try:
            reply = client.execute_interactive(
                cell, timeout=PATIENCE_SECONDS, output_hook=lambda said: printed.append(said["content"].get("text", ""))
            )
        except TimeoutError:
            raise AssertionError("the cell does not end: " + "".join(printed)) from None
        assert reply["content"]["status"] == "ok", "\n".join(reply["content"]["traceback"]) + "".join(printed)
        return "".join(printed)
    finally:
        client.stop_channels()


def test_a_notebook(program: MainProgram, kernel: KernelManager) -> None:
    definitions, run, start = program.text.partition('if __name__ == "__main__":')
    assert execute(kernel, definitions) == ""
    program.check(execute(kernel, run + start))


def test_a_script_run_from_a_notebook(program: MainProgram, kernel: KernelManager) -> None:
    program.check(execute(kernel, f"%run {program.write('orders.py')}"))
