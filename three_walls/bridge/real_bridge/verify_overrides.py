"""Checks overrides with ``check_overrides.py``, and with Megatron-Bridge itself where an interpreter has it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from three_walls.bridge.check_overrides import OverrideCheck, check_overrides
from three_walls.bridge.merged_config import MergedConfig, config_of_paths, config_of_run
from three_walls.bridge.render_overrides import NEWEST_BRIDGE
from three_walls.lib.expressions import Truth
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.bridge_releases import (
    bridge_schema,
    describe_unknown_paths,
    is_known_release,
    list_unknown_paths,
    name_release,
)
from three_walls.tables.hardware import find_gpu

RUNNER = Path(__file__).with_name("bridge_runner.py")
INSTALL = "pip install --no-deps megatron-bridge megatron-core, and torch, transformers, pillow, omegaconf, hydra-core"
TIMEOUT_S = 600
SHOWN_NAMES = 6
"""This many constraints with an unknown answer are named: without a configuration there are a hundred."""
LEAST_KNOWN = 0.5
"""Of all constraints: where fewer can be compared, that nothing fails means little."""

WARNING = "WARNING "
SCHEMA_VERSION = 1
"""Version of what --json prints."""

_TRUTHS = {Truth.HOLDS: "ok", Truth.FAILS: "FAILS", Truth.UNKNOWN: "unknown"}


class NoBridgeError(Exception):
    """Megatron-Bridge cannot be run; the message explains why, in one line."""


@dataclass(frozen=True, slots=True)
class WrittenOverrides:
    """Hydra overrides and environment variables, as an overrides.txt or the command of a run has them."""

    overrides: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_command: bool = False
    recipe: str | None = None
    settings: RunConfig = field(default_factory=RunConfig)
    """What the command's options say of the run."""
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The run that the overrides are for: a ``recipe`` by its name, or a saved configuration in ``config_file``."""

    recipe: str | None
    config_file: Path | None
    config: MergedConfig | None
    """What ``config_file`` holds."""
    release: str | None
    """The Megatron-Bridge release to check against, as stated or as the configuration shows."""
    python: str | None
    """The interpreter that has Megatron-Bridge, if any has; None: no other program is run."""
    gpu_name: str | None = None
    transformer_engine: str | None = None
    world_size: int | None = None
    models: Path | None = None
    """A folder of ``<owner>/<model>/config.json``, where the model hub is out of reach."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What to print, as lines and as JSON, and whether nothing failed."""

    lines: tuple[str, ...]
    document: Mapping[str, Any]
    """docs/verify.md states its fields."""
    is_valid: bool


def verify(written: WrittenOverrides, target: Target) -> Verification:
    """Check names, types, values and constraints of the overrides, then let Megatron-Bridge validate them."""
    answer, reason = _run_bridge(written, target)
    result = answer["results"][0] if answer else None
    release = target.release or (answer or {}).get("bridge") or NEWEST_BRIDGE
    config = replace(_find_base(written, target, result), platform=_platform(target))
    check = check_overrides(written.overrides, config, release, written.environment)
    warnings = tuple(_find_warnings(check, config))
    lines = [_describe_target(target, release, check), *_describe_check(check), *warnings]
    if answer and result:
        lines += _describe_answer(written, result, answer["bridge"])
    else:
        lines.append(f"Megatron-Bridge itself was not run: {reason}. To run it: {INSTALL}")
    bridge_fails = result is not None and not (result["applied"] and result["validated"])
    is_valid = check.is_valid and not bridge_fails
    document = {
        "schema_version": SCHEMA_VERSION,
        "valid": is_valid,
        "accepted": check.is_accepted,
        "release": release,
        "checked_against": check.release,
        "overrides": [
            {
                "text": found.text,
                "state": _TRUTHS[found.truth].lower(),
                "message": found.message,
                "fails": found.failure_mode,
            }
            for found in check.overrides
        ],
        "broken": [{"name": note.name, "text": note.text, "source": note.source} for note in check.broken],
        "unknown": list(check.unknown),
        "constraints": check.constraints_count,
        "warnings": [warning.removeprefix(WARNING) for warning in warnings],
        "bridge": {name: result[name] for name in ("applied", "validated", "message", "failing")} if result else None,
    }
    return Verification(tuple(lines), document, is_valid)


def _find_base(written: WrittenOverrides, target: Target, result: Mapping[str, Any] | None) -> MergedConfig:
    """What the overrides are applied to, as far as known."""
    if target.config is not None:
        return target.config
    if result and result.get("dump"):
        return config_of_paths(result["dump"])
    if written.is_command or target.recipe is None:
        return config_of_run(written.settings)
    return config_of_run(merge_sources([read_command_line(["run_recipe.py", "--recipe", target.recipe])]))


def _platform(target: Target) -> dict[str, Any]:
    """The machine, as constraints name it."""
    gpu, engine = find_gpu(target.gpu_name), target.transformer_engine
    major, minor = engine.split(".")[:2] if engine is not None else ("", "")
    platform = {
        "gpu_name": target.gpu_name,
        "gpu_sm": int(gpu.sm.removeprefix("sm_")) if gpu is not None else None,
        "transformer_engine": 1000 * int(major) + int(minor) if engine is not None else None,
        "world_size": target.world_size,
    }
    return {name: value for name, value in platform.items() if value is not None}


def ask_bridge(python: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ``bridge_runner.py``; raises NoBridgeError where Megatron-Bridge cannot be imported."""
    try:
        output, errors = _run_in_group([python, str(RUNNER)], json.dumps(request))
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the name
        raise NoBridgeError(f"{python}: {getattr(error, 'strerror', None) or error}") from error
    except subprocess.TimeoutExpired as error:
        raise NoBridgeError(f"{python}: no answer within {TIMEOUT_S} seconds") from error
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError as error:
        last = (errors.strip().splitlines() or ["no output"])[-1]
        raise NoBridgeError(f"{python}: {last}") from error
    if "error" in answer:
        raise NoBridgeError(str(answer["error"]))
    return answer


def _run_in_group(command: Sequence[str], text: str) -> tuple[str, str]:
    """What ``command`` prints to stdout and stderr, given ``text`` on stdin.

    It runs in a process group of its own, which is ended whatever stops us: an interpreter that is a wrapper script
    would otherwise leave the real one running.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            return process.communicate(text, timeout=TIMEOUT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _run_bridge(written: WrittenOverrides, target: Target) -> tuple[dict[str, Any] | None, str]:
    """Megatron-Bridge's answer, or None and the reason."""
    if target.recipe is None and target.config_file is None:
        return None, "the command names no recipe"
    if target.python is None:
        return None, "only three-walls verify runs other programs"
    case = {
        "recipe": target.recipe,
        "config": str(target.config_file.resolve()) if target.config_file is not None else None,
        "overrides": list(written.overrides),
        "environment": dict(written.environment),
        "dump": True,
    }
    major, minor = divmod(_platform(target).get("gpu_sm", 90), 10)
    request = {
        "gpu_name": target.gpu_name,
        "gpu_major": major,
        "gpu_minor": minor,
        "transformer_engine": target.transformer_engine,
        "world_size": target.world_size,
        "models": str(target.models.resolve()) if target.models is not None else None,
        "cases": [case],
    }
    try:
        return ask_bridge(target.python, request), ""
    except NoBridgeError as error:
        return None, str(error)


def _describe_target(target: Target, release: str, check: OverrideCheck) -> str:
    run = target.recipe or (target.config_file.name if target.config_file is not None else "a command")
    is_newest = not target.release and check.release == bridge_schema(NEWEST_BRIDGE).release
    remark = " (the newest known release)" if is_newest else ""
    if not is_known_release(release):
        remark += f", checked against what is known of {check.release}"
    return f"Overrides for {run}, Megatron-Bridge {name_release(release)}{remark}:"


def _describe_check(check: OverrideCheck) -> Iterator[str]:
    for override in check.overrides:
        message = f": {override.message}" if override.message else ""
        yield f"{_TRUTHS[override.truth]:8}{override.text}{message}"
    for note in check.broken:
        yield f"FAILS   {note.name}: {note.text} [{note.source}]"
    if check.unknown:
        names = ", ".join(check.unknown[:SHOWN_NAMES])
        more = ", ..." if len(check.unknown) > SHOWN_NAMES else ""
        yield f"unknown {len(check.unknown)} constraints depend on settings that are not known: {names}{more}"


def _find_warnings(check: OverrideCheck, config: MergedConfig) -> Iterator[str]:
    count = check.constraints_count - len(check.unknown)
    if count < check.constraints_count * LEAST_KNOWN:
        yield (
            f"{WARNING}only {count} of {check.constraints_count} constraints could be compared, because few settings "
            "of the run are known: give its whole run_config.yaml with --config"
        )
    if unknown := list_unknown_paths(config.paths):
        yield f"{WARNING}{describe_unknown_paths(unknown)}"


def _describe_answer(written: WrittenOverrides, result: dict[str, Any], version: str) -> Iterator[str]:
    """What Megatron-Bridge did. Where the overrides do not apply together, it tried each of them alone."""
    state = "validated" if result["validated"] else "applied" if result["applied"] else "ok alone"
    yield f"Megatron-Bridge {version} itself:"
    for override in written.overrides:
        failure = result["failing"].get(override)
        yield f"FAILS     {override}: {failure}" if failure else f"{state:9} {override}"
    if result["message"]:
        yield f"FAILS     {result['message']}"
