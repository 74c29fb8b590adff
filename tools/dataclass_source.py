"""Reads dataclasses out of source text without importing it: fields, types, defaults, enums."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SIMPLE = {"bool": "bool", "int": "int", "float": "float", "str": "str", "Any": "any", "object": "any"}
LISTS = ("List", "list", "Sequence", "Iterable", "Tuple", "tuple", "Set", "set")
DICTS = ("Dict", "dict", "Mapping")


@dataclass(frozen=True)
class Field:
    """One field: the kinds of values it takes, the texts or numbers a Literal allows, its plain default."""

    kinds: tuple[str, ...]
    """Of bool, int, float, str, null, any, list[...], dict, dtype, callable, enum:<name>, object:<name>."""
    values: tuple[object, ...] = ()
    has_default: bool = False
    default: object = None


@dataclass
class Sources:
    """Source files of packages by path inside them, from wheels or directories; the first that has a path wins."""

    roots: tuple[Path, ...]
    _modules: dict[str, _Module | None] = field(default_factory=dict)

    def module(self, name: str) -> _Module | None:
        """The parsed module, or None where no root has it."""
        if name not in self._modules:
            found = self._read(name)
            self._modules[name] = _Module(self, name, *found) if found else None
        return self._modules[name]

    def _read(self, name: str) -> tuple[ast.Module, bool] | None:
        stem = name.replace(".", "/")
        for path, is_package in ((f"{stem}.py", False), (f"{stem}/__init__.py", True)):
            for root in self.roots:
                text = _read_text(root, path)
                if text is not None:
                    return ast.parse(text), is_package
        return None


@cache
def _names_in(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def _read_text(root: Path, path: str) -> str | None:
    if root.is_dir():
        file = root / path
        return file.read_text(encoding="utf-8") if file.is_file() else None
    if path not in _names_in(root):
        return None
    with zipfile.ZipFile(root) as archive:
        return archive.read(path).decode("utf-8")


class _Module:
    """One module: its classes, type aliases and what its imports mean."""

    def __init__(self, sources: Sources, name: str, tree: ast.Module, is_package: bool) -> None:
        self.sources, self.name = sources, name
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.aliases: dict[str, ast.expr] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        package = name if is_package else name.rpartition(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])]) if node.level else node.module
                for imported in node.names:
                    self.imports.setdefault(imported.asname or imported.name, (base or "", imported.name))
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.aliases[statement.targets[0].id] = statement.value

    def find(self, name: str, depth: int = 0) -> tuple[_Module, str] | None:
        """Where ``name`` is defined, through re-exports."""
        if name in self.classes or name in self.aliases:
            return self, name
        if name not in self.imports or depth > 9:
            return None
        base, original = self.imports[name]
        module = self.sources.module(base)
        return module.find(original, depth + 1) if module else None


def read_enum(sources: Sources, module: str, name: str) -> Mapping[str, object] | None:
    """Members of an enum and their plain values; None where the class is no enum."""
    home = sources.module(module)
    found = home.find(name) if home else None
    if found is None or found[1] not in found[0].classes:
        return None
    node = found[0].classes[found[1]]
    if not any("Enum" in ast.unparse(base) for base in node.bases):
        return None
    assigned = [line for line in node.body if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)]
    return {ast.unparse(line.targets[0]): _constant(line.value)[1] for line in assigned}


def home_of(sources: Sources, module: str, name: str) -> str | None:
    """Name of the module that defines the class which ``module`` calls ``name``."""
    home = sources.module(module)
    found = home.find(name) if home else None
    return found[0].name if found else None


def read_registered(sources: Sources, module: str) -> tuple[str, ...]:
    """Names of the functions that ``@register`` marks, in order."""
    home = sources.module(module)
    functions = home.functions if home else []
    return tuple(
        function.name
        for function in functions
        if any(ast.unparse(decorator) == "register" for decorator in function.decorator_list)
    )


def read_registered_values(sources: Sources, module: str) -> dict[str, dict[str, object]]:
    """What each function that ``@register`` marks sets of the object that it returns, by its name.

    Such a function returns a call with keywords, or takes what another one returns and assigns to its fields.
    """
    home = sources.module(module)
    functions = {function.name: function for function in home.functions} if home else {}
    return {name: _returned_values(functions[name], functions) for name in read_registered(sources, module)}


def _returned_values(function: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef]) -> dict[str, object]:
    values: dict[str, object] = {}
    for statement in function.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in functions:
            values |= _returned_values(functions[value.func.id], functions)
        elif isinstance(value, ast.Call):
            values |= {word.arg: _plain_value(word.value) for word in value.keywords if word.arg}
        elif (
            isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute) and value is not None
        ):
            values[statement.targets[0].attr] = _plain_value(value)
    return values


def _plain_value(node: ast.expr) -> object:
    """A literal as it is, ``torch.half`` as torch.float16."""
    is_known, value = _constant(node)
    return value if is_known else {"torch.half": "torch.float16"}.get(ast.unparse(node), ast.unparse(node))


def read_fields(sources: Sources, module: str, name: str) -> dict[str, Field]:
    """Fields of a dataclass, inherited ones first; raises LookupError where the class is not found."""
    home = sources.module(module)
    found = home.find(name) if home else None
    if found is None or found[1] not in found[0].classes:
        raise LookupError(f"{module} has no class {name}")
    return _fields_of(found[0], found[0].classes[found[1]])


def _fields_of(module: _Module, node: ast.ClassDef) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for base in reversed(node.bases):  # what stands first in the list of bases wins
        found = module.find(ast.unparse(base)) if isinstance(base, ast.Name) else None
        if found is not None and found[1] in found[0].classes:
            fields |= _fields_of(found[0], found[0].classes[found[1]])
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            annotation = ast.unparse(line.annotation)
            if not line.target.id.startswith("_") and "ClassVar" not in annotation and "InitVar" not in annotation:
                fields[line.target.id] = _read_field(module, line)
    return fields


def _read_field(module: _Module, node: ast.AnnAssign) -> Field:
    kinds, values = _kinds(module, node.annotation)
    has_default, default = _default(node.value) if node.value else (False, None)
    return Field(tuple(dict.fromkeys(kinds)), tuple(dict.fromkeys(values)), has_default, default)


def _kinds(module: _Module, node: ast.expr) -> tuple[list[str], list[object]]:
    """Kinds of values an annotation stands for, and what its Literals allow."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _kinds(module, ast.parse(node.value, mode="eval").body)
    if isinstance(node, ast.Constant) and node.value is None:
        return ["null"], []
    if isinstance(node, ast.BinOp):
        return _join(module, [node.left, node.right])
    if isinstance(node, ast.Subscript):
        return _subscript_kinds(module, node)
    name = ast.unparse(node)
    if name in SIMPLE:
        return [SIMPLE[name]], []
    if name in LISTS:
        return ["list[any]"], []
    if name in DICTS:
        return ["dict"], []
    if name == "torch.dtype":
        return ["dtype"], []
    if name.split(".")[-1] == "Callable":
        return ["callable"], []
    return _named_kinds(module, name.split(".")[-1])


def _named_kinds(module: _Module, name: str) -> tuple[list[str], list[object]]:
    found = module.find(name)
    if found and found[1] in found[0].aliases and isinstance(found[0].aliases[found[1]], ast.Subscript | ast.BinOp):
        return _kinds(found[0], found[0].aliases[found[1]])
    if found and read_enum(found[0].sources, found[0].name, found[1]) is not None:
        return [f"enum:{found[1]}"], []
    return [f"object:{name}"], []


def _subscript_kinds(module: _Module, node: ast.Subscript) -> tuple[list[str], list[object]]:
    outer = ast.unparse(node.value).split(".")[-1]
    inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if outer == "Optional":
        kinds, values = _join(module, inner)
        return [*kinds, "null"], values
    if outer == "Union":
        return _join(module, inner)
    if outer == "Literal":
        allowed = [ast.literal_eval(element) for element in inner]
        kinds = [type(value).__name__ if value is not None else "null" for value in allowed]
        return kinds, [value for value in allowed if value is not None]
    if outer in LISTS:
        kinds, values = _join(module, [element for element in inner if ast.unparse(element) != "..."])
        elements = ["any" if kind.startswith("list[") or kind == "null" else kind for kind in kinds]
        return [f"list[{kind}]" for kind in dict.fromkeys(elements)], values
    if outer in DICTS:
        return ["dict"], []
    return (["callable"], []) if outer == "Callable" else (["any"], [])


def _join(module: _Module, nodes: list[ast.expr]) -> tuple[list[str], list[object]]:
    parts = [_kinds(module, node) for node in nodes]
    return [kind for kinds, _ in parts for kind in kinds], [value for _, values in parts for value in values]


def _default(node: ast.expr) -> tuple[bool, object]:
    """Whether the default is a plain value, and which."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("field", "argparse_field"):
        given = {word.arg: word.value for word in node.keywords}
        if "default" in given:
            return _constant(given["default"])
        factory = ast.unparse(given["default_factory"]).replace(" ", "") if "default_factory" in given else ""
        return (True, []) if factory in ("list", "lambda:[]") else (False, None)
    return _constant(node)


def _constant(node: ast.expr) -> tuple[bool, object]:
    try:
        return True, ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow):
        (left_known, left), (right_known, right) = _constant(node.left), _constant(node.right)
        if left_known and right_known and isinstance(left, int) and isinstance(right, int):
            return True, left * right if isinstance(node.op, ast.Mult) else left**right
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id[:1].isupper():
        return True, node.attr  # a member of an enum
    return False, None
