"""The templates of the page as Python modules, because compiling them takes longer than filling them.

Each module is kept under a digest of the template and of the code that compiles it, so what was changed is compiled
again. A wheel brings the modules along: ``hatch_build.py`` writes them. A checkout keeps them where Python keeps its
compiled modules, and keeps nothing where Python would not (``-B``, a directory that cannot be written).
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, Template, compiler, runtime

from three_walls.lib.resources import IS_BUNDLED, PARSED_DIR, TEMPLATES_DIR


class TemplateLoader(FileSystemLoader):
    """Loads a template from its module; compiles it, and keeps the module, where there is none that fits."""

    def __init__(self) -> None:
        super().__init__(TEMPLATES_DIR)

    def load(
        self,
        environment: Environment,
        name: str,
        globals: MutableMapping[str, Any] | None = None,  # noqa: A002
    ) -> Template:
        globals = {} if globals is None else globals  # noqa: A001
        content = _read_module(name)
        if content is None and not IS_BUNDLED and not sys.dont_write_bytecode:
            with suppress(OSError):
                PARSED_DIR.mkdir(parents=True, exist_ok=True)
                _write_module(environment, name, PARSED_DIR)
            content = _read_module(name)
        if content is None:
            return super().load(environment, name, globals)
        return environment.template_class.from_module_dict(environment, content, globals)


def write_modules(environment: Environment, folder: Path) -> None:
    """Writes the modules of all templates into ``folder``."""
    for path in sorted(TEMPLATES_DIR.glob("*.jinja")):
        _write_module(environment, path.name, folder)


def _read_module(name: str) -> MutableMapping[str, Any] | None:
    """What the module of the template ``name`` defines; None where it is not kept as the template is now."""
    spec = spec_from_file_location(_module_name(name), PARSED_DIR / f"{_module_name(name)}.py")
    assert spec is not None and spec.loader is not None  # it is a Python file, whether it exists or not
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception:  # a damaged file may raise anything
        return None
    content = vars(module)
    return content if content.get("DIGEST") == _digest(name) else None


def _write_module(environment: Environment, name: str, folder: Path) -> None:
    """Writes the file as a whole or not at all, as several processes may do at the same time."""
    source = (TEMPLATES_DIR / name).read_text(encoding="utf-8")
    code = environment.compile(source, name, name, raw=True, defer_init=True)
    path = folder / f"{_module_name(name)}.py"
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(f'DIGEST = "{_digest(name)}"\n{code}', encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _module_name(name: str) -> str:
    return name.replace(".", "_")


def _digest(name: str) -> str:
    return sha256(_compiler_digest() + (TEMPLATES_DIR / name).read_bytes()).hexdigest()


@cache
def _compiler_digest() -> bytes:
    """Of Jinja's code that compiles templates and of that which the modules call, and of ours that sets its options."""
    files = (compiler.__file__, runtime.__file__, __file__, Path(__file__).with_name("html_report.py"))
    return sha256(b"".join(Path(file).read_bytes() for file in files)).digest()
