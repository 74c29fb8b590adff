"""The shape of the code, which a newcomer relies on who looks for a thing by its name. Sizes are printed only."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from tests.paths import REPOSITORY

PACKAGE = REPOSITORY / "three_walls"
MAY_SHARE_A_NAME = ("cli", "report/sections")
"""A command or a section carries the name of what it shows."""
FEW_LINES = 60
FOREIGN_FILES = {
    "pretrain_gpt.py",
    "run_recipe.py",
    "train.py",
    "comm_overlap.py",
    "theoretical_memory_usage.py",
    "parsed.py",
    "hatch_build.py",
}
"""Those of Megatron, of users and of the build; ``parsed.py`` gives a name to a cache."""


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by its path below the package, without ``.py``."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    return {str(path.relative_to(PACKAGE))[:-3]: ast.parse(path.read_text()) for path in paths}


def list_twice(places: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


@pytest.mark.slow
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


def test_files_that_comments_name_exist() -> None:
    folders = (PACKAGE, REPOSITORY / "tools", REPOSITORY / "benchmarks", REPOSITORY / "tests")
    known = {path.name for folder in folders for path in folder.rglob("*.py")} | FOREIGN_FILES
    named = {
        (module, name)
        for module in modules()
        for name in re.findall(r"(?<![\w/.-])\w+\.py\b", (PACKAGE / f"{module}.py").read_text())
    }
    assert {(module, name) for module, name in named if name not in known} == set()


def list_bare_frames(module: str, body: list[ast.stmt]) -> Iterator[str]:
    """Public functions, methods and fields below ``body`` that name a frame and not which table it is."""
    for node in body:
        name = getattr(node, "name", None) or ast.unparse(getattr(node, "target", ast.Constant("")))
        if name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from list_bare_frames(module, node.body)
        notes: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            notes = [*(parameter.annotation for parameter in parameters), node.returns]
        elif isinstance(node, ast.AnnAssign):
            notes = [node.annotation]
        if any("DataFrame" in ast.unparse(note) for note in notes if note):
            yield f"{module}: {name}"


def test_a_bare_frame_is_found() -> None:
    source = "def count(rows: pl.DataFrame) -> int: ...\ndef list_steps(steps: Steps) -> Steps: ..."
    assert [*list_bare_frames("sample", ast.parse(source).body)] == ["sample: count"]


def test_tables_that_are_passed_on_have_a_name() -> None:
    assert [name for module, tree in modules().items() for name in list_bare_frames(module, tree.body)] == []


def test_the_size_of_the_house_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines: dict[str, int] = defaultdict(int)
    for module in modules():
        lines[module.partition("/")[0]] += len((PACKAGE / f"{module}.py").read_text().splitlines())
    with capsys.disabled():
        rooms = ", ".join(f"{room} {count:,}" for room, count in sorted(lines.items(), key=lambda item: -item[1]))
        print(f"\n{len(modules())} files, {sum(lines.values()):,} lines: {rooms}")  # noqa: T201 - what the test is for
    assert lines
