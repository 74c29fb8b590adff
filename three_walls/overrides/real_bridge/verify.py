"""``three-walls verify``: overrides judged by our checker, and by Megatron-Bridge where it can be imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from three_walls.model.errors import UsageError
from three_walls.overrides.check import OverrideCheck, check_overrides
from three_walls.overrides.merged_config import Settings
from three_walls.overrides.real_bridge.configuration import guess_release, read_run_config, settings_of_paths
from three_walls.overrides.real_bridge.overrides_text import WrittenOverrides, read_overrides
from three_walls.overrides.real_bridge.process import INSTALL, NoBridgeError, ask_bridge
from three_walls.overrides.spell import NEWEST_BRIDGE
from three_walls.rules.conditions import Truth
from three_walls.tables.bridge import bridge_schema

FEW_NAMES = 6
"""Constraints of unknown answer that are listed by name: without a configuration there are a hundred."""

_TRUTHS = {Truth.HOLDS: "ok", Truth.FAILS: "FAILS", Truth.UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True)
class Verification:
    """Lines for a person, and whether nothing failed."""

    lines: tuple[str, ...]
    is_fine: bool


@dataclass(frozen=True, slots=True)
class Target:
    """What the overrides are for. One of ``recipe`` and ``config`` is given."""

    recipe: str | None
    config: Path | None
    bridge_version: str | None
    python: str
    gpu_name: str | None = None
    world_size: int | None = None
    models: Path | None = None
    """A folder of ``<owner>/<model>/config.json``, where the model hub is out of reach."""


def verify(path: Path, target: Target) -> Verification:
    """Judges the overrides in ``path``. Raises the errors of ``three_walls.model.errors``."""
    if (target.recipe is None) == (target.config is None):
        raise UsageError("verify: expected either --recipe NAME or --config run_config.yaml, found both or neither")
    written = read_overrides(path)
    settings = read_run_config(target.config) if target.config is not None else None
    answer, why_not = _ask(written, target)
    guessed = guess_release(settings) if settings is not None else None
    version = target.bridge_version or guessed or (answer or {}).get("bridge") or NEWEST_BRIDGE
    if settings is None:
        dump = answer["results"][0].get("dump") if answer else None
        settings = settings_of_paths(dump) if dump else Settings({}, {})
    platform: dict[str, Any] = {"gpu_name": target.gpu_name, "world_size": target.world_size}
    settings = replace(settings, platform={name: value for name, value in platform.items() if value is not None})
    check = check_overrides(written.overrides, settings, version, written.environment)
    result = answer["results"][0] if answer else None
    lines = (
        *_describe(target, version, check),
        *_checker_lines(check),
        *(_bridge_lines(written, result, answer["bridge"]) if answer and result else _no_bridge(why_not)),
    )
    bridge_fails = result is not None and not (result["applied"] and result["validated"])
    return Verification(lines, check.is_sound and not bridge_fails)


def _ask(written: WrittenOverrides, target: Target) -> tuple[dict[str, Any] | None, str]:
    case = {
        "recipe": target.recipe,
        "config": str(target.config.resolve()) if target.config is not None else None,
        "overrides": list(written.overrides),
        "environment": written.environment,
        "dump": True,
    }
    request = {
        "gpu_name": target.gpu_name,
        "world_size": target.world_size,
        "models": str(target.models.resolve()) if target.models is not None else None,
        "cases": [case],
    }
    try:
        return ask_bridge(target.python, request), ""
    except NoBridgeError as error:
        return None, str(error)


def _describe(target: Target, version: str, check: OverrideCheck) -> Iterator[str]:
    of = target.recipe or (target.config.name if target.config is not None else "")
    schema = "" if check.release == version else f", judged by what is known of {check.release}"
    unsaid = (
        "" if target.bridge_version or check.release != bridge_schema(NEWEST_BRIDGE).release else " (the newest known)"
    )
    yield f"{of}, Megatron-Bridge {version}{unsaid}{schema}"


def _checker_lines(check: OverrideCheck) -> Iterator[str]:
    for one in check.overrides:
        yield f"{_TRUTHS[one.truth]:8}{one.text}" + (f": {one.message}" if one.message else "")
    for note in check.broken:
        yield f"FAILS   {note.name}: {note.text} [{note.source}]"
    if check.unknown:
        names = ", ".join(check.unknown[:FEW_NAMES])
        more = ", ... (--config run_config.yaml tells more)" if len(check.unknown) > FEW_NAMES else ""
        yield f"unknown {len(check.unknown)} constraints compare settings that are not known: {names}{more}"


def _bridge_lines(written: WrittenOverrides, result: dict[str, Any], version: str) -> Iterator[str]:
    state = "validated" if result["validated"] else "applied" if result["applied"] else "ok alone"
    yield f"Megatron-Bridge {version} itself:"
    for one in written.overrides:
        failed = result["failing"].get(one)
        yield f"FAILS     {one}: {failed}" if failed else f"{state:9} {one}"
    if result["message"]:
        yield f"FAILS     {result['message']}"


def _no_bridge(why_not: str) -> Iterator[str]:
    yield f"Megatron-Bridge itself was not asked: {why_not or 'it cannot be imported'}; to ask it: {INSTALL}"
