"""Cases: base configurations and their edits, as ``cases/*.yaml`` hold them.

``common.yaml`` comes before each; ``like: NAME`` begins with another case. Overrides and variables add up, of
everything else the last one counts. An edit that is only a name is the one of that name in ``edits.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
_read_yaml = partial(yaml.load, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # libyaml, where PyYAML has it


@dataclass(frozen=True)
class Edit:
    """What one run changes: overrides, variables, faults, and the rule that proposes it, if one does.

    ``profiler`` is a key of run_cases.TRACES for a run whose steps after the warm-up show what profiling costs.
    """

    name: str
    overrides: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Any] | None = None
    rule: str | None = None
    iterations: int | None = None
    warmup: int | None = None
    profiler: str | None = None


BASE = Edit("base")


@dataclass(frozen=True)
class Case:
    """A base configuration and its edits."""

    name: str
    recipes: str
    recipe: str
    gpus: int
    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    faults: Mapping[str, Any]
    edits: tuple[Edit, ...]
    iterations: int
    warmup: int
    edits_between_bases: int
    rounds: int
    """How often every edit runs, with bases before and after each time."""
    models: Path
    """``<owner>/<model>/config.json`` of the models that recipes would ask the model hub for; of others it is asked."""
    start_s: float
    """About what a training takes beside its iterations, to plan a session with."""
    capture: bool
    metrics: bool
    """Whether the capture samples the GPU's hardware counters, too."""
    step_ms: float
    """About what a step takes, to plan a session with."""
    expect: Mapping[str, Any] | None
    """What a report of the captured base must say, as far as it is known by construction."""
    must_not: Mapping[str, Any]
    """And what it must not."""


DEFAULTS = {
    "gpus": 2, "faults": {}, "edits_between_bases": 2, "rounds": 1, "capture": True, "metrics": False, "step_ms": 550,
    "start_s": 11, "expect": None, "must_not": {}, "models": HERE.parents[1] / "tests" / "bridge" / "models",
}  # fmt: skip
"""``start_s``: the median of 41 trainings on two H200s. A case whose start compiles kernels states its own."""


def read_case(path: Path) -> Case:
    """The case of a file. Its recipes and models may be files and folders beside it."""
    layers = [_read_shared("common.yaml"), *_read_layers(path)]
    nearest = {name: value for layer in layers for name, value in layer.items() if name not in ("like", "edits")}
    edits = next((layer["edits"] for layer in reversed(layers) if "edits" in layer), ())
    if nearest["recipes"].endswith(".py"):
        nearest["recipes"] = str((path.parent / nearest["recipes"]).resolve())
    if "models" in nearest:
        nearest["models"] = (path.parent / nearest["models"]).resolve()
    return Case(**{
        **DEFAULTS,
        **nearest,
        "name": path.stem,
        "overrides": tuple(override for layer in layers for override in layer.get("overrides", ())),
        "environment": {name: value for layer in layers for name, value in layer.get("environment", {}).items()},
        "edits": tuple(read_edit(edit) for edit in edits),
    })  # fmt: skip


@cache
def _read_shared(name: str) -> dict[str, Any]:
    """What cases share, which is read once: a case may name twenty edits."""
    shared: dict[str, Any] = _read_yaml((HERE / name).read_text())
    return shared


def _read_layers(path: Path) -> list[dict[str, Any]]:
    """What the case begins with, then the case."""
    data = _read_yaml(path.read_text())
    return [*(_read_layers(path.with_stem(data["like"])) if "like" in data else ()), data]


def read_edit(data: str | Mapping[str, Any]) -> Edit:
    if isinstance(data, str):
        data = {"name": data, **_read_shared("edits.yaml")[data]}
    return Edit(**{**data, "overrides": tuple(data.get("overrides", ()))})


def order(case: Case) -> Iterator[Edit]:
    """base, edits, base, edits, ..., base; in every round anew."""
    yield BASE
    for _ in range(case.rounds):
        for start in range(0, len(case.edits), case.edits_between_bases):
            yield from case.edits[start : start + case.edits_between_bases]
            yield BASE


def alike(cases: Iterable[Case]) -> list[list[Case]]:
    """The cases in groups that the same processes can train: the same recipes, as many GPUs, the same variables."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.recipes, case.models, case.gpus, *sorted(case.environment.items())), []).append(case)
    return list(groups.values())


def rank_environment(case: Case, rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case.gpus), "LOCAL_WORLD_SIZE": str(case.gpus),
        "MASTER_ADDR": "localhost",
    }  # fmt: skip


PROFILED_STEPS = 3


def kept_steps(case: Case, edit: Edit) -> range:
    """The steps whose times count: after the warm-up, and of a captured base before the profiler starts."""
    iterations, warmup = edit.iterations or case.iterations, edit.warmup or case.warmup
    if edit.name == BASE.name and edit.profiler:
        return range(warmup, iterations - PROFILED_STEPS)
    return range(warmup + bool(edit.profiler), iterations)  # the profiler starts in the step after the warm-up


def overrides_of(case: Case, edit: Edit, folder: Path) -> list[str]:
    """All overrides of a run that leaves its configuration in ``folder``, if it is profiled."""
    overrides, iterations = [*case.overrides, *edit.overrides], edit.iterations or case.iterations
    if not edit.profiler:
        return [*overrides, f"train.train_iters={iterations}"]
    kept = kept_steps(case, edit)
    return [
        *overrides,
        f"train.train_iters={iterations + 2}",
        "profiling.use_nsys_profiler=true",
        f"profiling.profile_step_start={kept.start - 1 if kept.stop == iterations else kept.stop}",
        f"profiling.profile_step_end={iterations}",
        f"profiling.profile_ranks={list(range(case.gpus))}",
        f"logger.save_config_filepath={folder / 'run_config.yaml'}",
    ]


def labels_of(case: Case) -> dict[str, Any]:
    """The labels of the captured base: what the case expects, and what every one of its kind shows.

    ``*.labels.yaml`` beside a trace has this form; the measured step is for whoever keeps the trace to add.
    """
    expect = case.expect or {}
    return {
        "trace": case.name,
        "logs": [f"{case.name}/train.log"],
        "config": f"{case.name}/run_config.yaml",
        "expect": {
            **expect,
            "ranks": list(range(case.gpus)),
            "shares": {"unclassified": [0, 0.005], **expect.get("shares", {})},
            "facts": {"world_size": case.gpus, **expect.get("facts", {})},
        },
        "must_not": dict(case.must_not),
    }
