"""The lists of the compiled modules are complete, and their types (kernel/*.pyi) agree with the modules."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.kernel import MODULES

ROOT = Path(__file__).parents[2]
#: What stubtest need not find in a stub: attributes that Cython adds, and values that a module has imported.
ALLOWED = r"""
penstock\.kernel\.\w+\.__(test|pyx_capi)__
penstock\.kernel\..*\.__(pyx_vtable|reduce_cython|setstate_cython)__
penstock\.kernel\.record_batches\.BROKEN_DATA_ERRORS
penstock\.kernel\.record_accumulator\.CODECS
"""
#: A class of a compiled module, and the parameters of its constructor.
CONSTRUCTOR = re.compile(r"^(?:cdef )?class (\w+)|^    def __init__\(self,?\s*(.*?)\):", re.MULTILINE | re.DOTALL)


@pytest.mark.medium
def test_stubs_have_the_names_and_parameters_of_the_compiled_modules(tmp_path: Path) -> None:
    """But the parameters of constructors, which a compiled class does not tell."""
    config, allowed = tmp_path / "mypy.ini", tmp_path / "allowed"
    config.write_text("[mypy]\nfollow_imports = skip\n")  # the stubs alone
    allowed.write_text(ALLOWED)
    options = ("--concise", "--ignore-disjoint-bases", "--mypy-config-file", config, "--allowlist", allowed)
    compared = subprocess.run(
        (sys.executable, "-m", "mypy.stubtest", *options, *(f"penstock.kernel.{name}" for name in MODULES)),
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert compared.returncode == 0, compared.stdout + compared.stderr


def test_all_modules_are_listed() -> None:
    sources = {path.stem for path in ROOT.glob("kernel/*.pyx")}
    documented = set(re.findall(r"^\| `kernel/(\w+)\.pyx` \|", (ROOT / "docs" / "kernel.md").read_text(), re.MULTILINE))
    assert set(MODULES) == sources
    assert documented == sources


@pytest.mark.parametrize("name", MODULES)
def test_stubs_have_the_parameters_of_constructors(name: str) -> None:
    source = (ROOT / "kernel" / f"{name}.pyx").read_text()
    stub = ast.parse((ROOT / "kernel" / f"{name}.pyi").read_text())
    declared = {
        node.name: [(each.arg, each.arg in defaults(method)) for each in method.args.args[1:]]
        for node in stub.body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    }
    assert declared == constructors(source)


def constructors(source: str) -> dict[str, list[tuple[str, bool]]]:
    """Return the parameters of each constructor, and whether they may be left out."""
    found: dict[str, list[tuple[str, bool]]] = {}
    current = ""
    for name, parameters in CONSTRUCTOR.findall(source):
        if name:
            current = name
        else:
            found[current] = [parameter(text) for text in re.split(r",(?![^(]*\))", parameters)]
    return found


def parameter(text: str) -> tuple[str, bool]:
    """Return the name of a parameter, such as "list errors not None" or "long size=-1", and if it has a default."""
    declaration, _, default = text.partition("=")
    return declaration.removesuffix(" not None").split()[-1], bool(default)


def defaults(method: ast.FunctionDef) -> set[str]:
    """Return the names of the parameters that have a default."""
    given = len(method.args.defaults)
    return {each.arg for each in method.args.args[-given:]} if given else set()
