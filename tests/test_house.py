"""The shape of the code, which a newcomer relies on who looks for a thing by its name. Sizes are printed only."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from tests.paths import REPOSITORY

PACKAGE = REPOSITORY / "three_walls"
MAY_SHARE_A_NAME = ("cli", "report/sections")
"""A command or a section carries the name of what it shows."""
FEW_LINES = 60


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by its path below the package, without ``.py``."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    return {str(path.relative_to(PACKAGE))[:-3]: ast.parse(path.read_text()) for path in paths}


def list_twice(places: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def test_no_two_files_have_one_name() -> None:
    places = defaultdict(list)
    for module in modules():
        folder, _, name = module.rpartition("/")
        if folder not in MAY_SHARE_A_NAME:
            places[name].append(module)
    assert list_twice(places) == []


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(list)
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert list_twice(places) == []


def read_imports(tree: ast.Module) -> Iterator[str]:
    """The modules of the package that ``tree`` imports, as far as names alone tell."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("three_walls"):
            package = (node.module or "").removeprefix("three_walls").lstrip(".").replace(".", "/")
            yield package
            yield from (f"{package}/{alias.name}".lstrip("/") for alias in node.names)


def test_no_small_file_serves_one_reader_in_its_own_folder() -> None:
    readers = defaultdict(set)
    for module, tree in modules().items():
        for imported in read_imports(tree):
            readers[imported].add(module)
    small = [
        module
        for module in modules()
        if len((PACKAGE / f"{module}.py").read_text().splitlines()) < FEW_LINES
        and len(readers[module]) == 1
        and not module.startswith(("cli/", "report/sections/"))
        and next(iter(readers[module])).rpartition("/")[0] == module.rpartition("/")[0]
    ]
    assert small == []


def test_the_size_of_the_house_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = defaultdict(int)
    for module in modules():
        lines[module.partition("/")[0]] += len((PACKAGE / f"{module}.py").read_text().splitlines())
    with capsys.disabled():
        rooms = ", ".join(f"{room} {count:,}" for room, count in sorted(lines.items(), key=lambda item: -item[1]))
        print(f"\n{len(modules())} files, {sum(lines.values()):,} lines: {rooms}")  # noqa: T201 - what the test is for
    assert lines
