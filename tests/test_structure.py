"""The layout that CONTRIBUTING.md describes: who may import whom, what lies where."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("model", "data", "explain", "benchmarks")
SCRIPTS = ("train", "translate")
MAY_IMPORT = {
    "model": {"model"},
    "data": {"data"},
    "explain": {"explain", "model", "data"},
}
FILES = [(package, path) for package in MAY_IMPORT
         for path in sorted((ROOT / package).rglob("*.py"))]  # fmt: skip


def _imports(path: Path) -> Iterator[str]:
    """Yield the first part of every imported name, inside functions as well."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize(("package", "path"), FILES, ids=lambda x: str(x)[-40:])
def test_packages_import_only_what_they_may(package: str, path: Path) -> None:
    ours = {name for name in _imports(path) if name in {*PACKAGES, *SCRIPTS, "tests"}}
    assert ours <= MAY_IMPORT[package]


@pytest.mark.parametrize(("package", "path"), FILES, ids=lambda x: str(x)[-40:])
def test_nothing_catches_every_exception(package: str, path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            assert caught not in {"everything", "Exception", "BaseException"}


def test_there_are_files_to_look_at() -> None:
    found = {path.relative_to(ROOT).as_posix() for _, path in FILES}
    assert {"model/attention.py", "data/corpus.py", "explain/files.py"} <= found


def test_attention_is_computed_in_one_place() -> None:
    """A softmax over scores, or the fused kernel, in no other file of the network.

    The loss takes one as well, over logits.
    """
    users = {
        path.name
        for path in (ROOT / "model").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in {"softmax", "scaled_dot_product_attention"}
    }
    assert users == {"attention.py", "loss.py"}
