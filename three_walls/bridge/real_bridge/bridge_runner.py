"""Runs Megatron-Bridge's own override and validation code on requests: JSON in on stdin, JSON out on stdout.

    python bridge_runner.py < request.json

It runs by its path in the interpreter that has Megatron-Bridge, which need not have three-walls. A request holds what
``stubs.install_stubs`` takes, and ``cases``, each with

* ``recipe`` (a function's name) or ``config`` (path of a run_config.yaml); it is made once for all cases that share it,
* ``overrides``, ``environment``, ``world_size``, and the machine where it is not the request's (``stubs.set_machine``),
* ``prepare`` and ``python``: lines that edit ``cfg`` before and after the overrides,
* ``show``: paths whose values to return; ``dump``: return every plain field of the configuration before the overrides;
* ``alone``: where the overrides do not apply together, try each of them alone (left out: true).

The answer holds ``bridge`` (its version), or ``error``, and one result per case: ``applied`` and ``validated``, the
``message`` of what failed, ``failing`` (the message of each override that fails alone), ``values`` and ``dump``.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib
import io
import json
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> None:
    """Answer the request on stdin."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    request = json.load(sys.stdin)
    # Bridge opens a path that is set to true as file descriptor 1, and closes it.
    answer_file = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        answer = _answer(request)
    with answer_file:
        json.dump(answer, answer_file)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        from stubs import install_stubs

        install_stubs(request)
        from megatron.bridge.package_info import __version__
    except Exception as error:
        return {"error": _describe(error)}
    release = __version__.partition("+")[0]  # within a git repository Bridge appends that repository's commit
    return {"bridge": release, "results": [_run(case, request) for case in request["cases"]]}


def _run(case: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    from stubs import set_machine

    set_machine({**request, **case})
    before = dict(os.environ)
    os.environ.update(case.get("environment") or {})
    if world_size := case.get("world_size") or request.get("world_size"):
        os.environ["WORLD_SIZE"] = str(world_size)
    try:
        return _apply_and_validate(case)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _apply_and_validate(case: Mapping[str, Any]) -> dict[str, Any]:
    from megatron.bridge.training.config import runtime_config_update
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    result: dict[str, Any] = {"applied": False, "validated": False, "message": "", "failing": {}, "values": {}}
    try:
        make = _find_factory(case)
    except Exception as error:
        return {**result, "message": f"the configuration cannot be made: {_describe(error)}"}
    if case.get("dump"):
        result["dump"] = _dump(make())
    overrides = list(case.get("overrides") or [])
    try:
        config = process_config_with_overrides(make(), cli_overrides=overrides) if overrides else make()
        exec("\n".join(case.get("python") or []), {"cfg": config})
        if "WORLD_SIZE" not in os.environ:
            os.environ["WORLD_SIZE"] = str(_smallest_world(config.model))
        result["applied"] = True
    except Exception as error:
        failing = dict(_failing_alone(make, overrides)) if case.get("alone", True) else {}
        return {**result, "message": _describe(error), "failing": failing}
    try:
        runtime_config_update(config)
        result["validated"] = True
    except Exception as error:
        result["message"] = _describe(error)
    result["values"] = {path: _value(config, path) for path in case.get("show") or []}
    return result


def _smallest_world(model: Any) -> int:
    """GPUs of one copy of the model, for a request that does not state how many the run has."""
    dense = model.tensor_model_parallel_size * model.context_parallel_size
    experts = model.expert_model_parallel_size * (model.expert_tensor_parallel_size or model.tensor_model_parallel_size)
    size: int = model.pipeline_model_parallel_size * math.lcm(dense, experts)
    return size


def _failing_alone(make: Callable[[], Any], overrides: list[str]) -> Iterator[tuple[str, str]]:
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    for override in overrides:
        try:
            process_config_with_overrides(make(), cli_overrides=[override])
        except Exception as error:
            yield override, _describe(error)


def _find_factory(case: Mapping[str, Any]) -> Callable[[], Any]:
    """A function that copies the configuration each time: overrides change the one they are applied to."""
    made = _make_configuration(case.get("config"), case.get("recipe"), tuple(case.get("prepare") or ()))
    return lambda: copy.deepcopy(made)


@functools.cache
def _make_configuration(path: str | None, recipe: str | None, prepare: tuple[str, ...]) -> Any:
    if path is not None:
        from megatron.bridge.training.config import ConfigContainer

        return ConfigContainer.from_yaml(path)
    config = find_recipe(str(recipe))()
    exec("\n".join(prepare), {"cfg": config})
    return config


def find_recipe(name: str) -> Callable[[], Any]:
    """The recipe function; raises LookupError where no module of the recipes has it."""
    from stubs import add_bare_package

    recipes = importlib.import_module("megatron.bridge.recipes")
    for path in _find_modules(name, Path(next(iter(recipes.__path__)))):
        parts = path.relative_to(next(iter(recipes.__path__))).with_suffix("").parts
        for depth in range(1, len(parts)):
            add_bare_package(".".join(("megatron.bridge.recipes", *parts[:depth])))
        module = importlib.import_module(".".join(("megatron.bridge.recipes", *parts)))
        recipe: Callable[[], Any] = getattr(module, name)
        return recipe
    raise LookupError(f"Megatron-Bridge has no recipe {name}")


def _find_modules(name: str, folder: Path) -> list[Path]:
    """Modules that define the recipe, then those that import or assign another one by this name (from 0.6 on)."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    defined = [path for path, text in texts.items() if f"def {name}(" in text]
    named = re.compile(rf"\bas {re.escape(name)}\b|^{re.escape(name)}\s*=", re.MULTILINE)
    return defined + [path for path, text in texts.items() if path.name != "__init__.py" and named.search(text)]


def _value(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
    return _plain(config)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "name", None) or str(value)


def _dump(config: Any) -> dict[str, Any]:
    """Every field that an override can reach, by path, with plain values."""
    values: dict[str, Any] = {}
    for section, content in vars(config).items():
        if content is None or isinstance(content, (str, int)):
            values[section] = content
            continue
        if isinstance(content, dict):  # env_vars
            fields = content
        elif dataclasses.is_dataclass(content):
            names = [field.name for field in dataclasses.fields(content)]
            fields = {name: getattr(content, name, None) for name in names if not name.startswith("_")}
        else:
            continue
        values[section] = type(content).__name__
        for name, value in fields.items():
            inner = value if type(value) is dict else {}
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                inner = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
            values[f"{section}.{name}"] = {} if inner is value else type(value).__name__ if inner else _plain(value)
            values.update({f"{section}.{name}.{field}": _plain(content) for field, content in inner.items()})
    return values


def _describe(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


if __name__ == "__main__":
    main()
