"""Checks cases on a machine without GPUs, and says how long they take on one with them.

Every run of a case is checked: its overrides as `three-walls verify` checks them, by Megatron-Bridge itself where an
interpreter has it, and for what a run asserts only once it has started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from case import BASE, Case, Edit, alike, order, overrides_of

from three_walls.bridge.check_overrides import check_overrides
from three_walls.bridge.merged_config import MergedConfig, config_of_paths
from three_walls.bridge.real_bridge.verify_overrides import ask_bridge

RELEASE, GPU = "0.6.2", "NVIDIA H200"
PLATFORM = {"gpu_name": GPU, "gpu_sm": 90, "transformer_engine": 2020, "torch": 2011}
"""The stack of the machines that the cases were written for, as tables/bridge-constraints.yaml writes it."""
PREPARE = ("from megatron.bridge.training.config import ProfilingConfig", "cfg.profiling = ProfilingConfig()")
"""What worker.py does to a recipe before the overrides."""

DELIBERATE = "model.moe_flex_dispatcher_backend=null"
"""The alltoall dispatcher reads no backend; the recipe's would be reported as one without effect."""

REPORT_S, IMPORT_S = 20, 30
"""What a capture takes beside a training (median of nine on two H200s), and an assumption for the import."""

Layout = Mapping[str, Any]
SIZES = {
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "vp": "model.virtual_pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "layers": "model.num_layers",
    "experts": "model.num_moe_experts",
    "micro": "train.micro_batch_size",
    "batch": "train.global_batch_size",
}


@dataclass(frozen=True)
class Plan:
    """What a case asks for. ``seconds`` is an estimate; ``problems`` are lines, each with the run that has it."""

    case: Case
    layout: str
    trainings: int
    seconds: float
    problems: tuple[str, ...]


def report(cases: Sequence[Case], only: str | None, python: str | None) -> int:
    """Print a line for each case, the sum for each number of GPUs, and the problems; 1 if there are any."""
    plans = plan(cases, only, python)
    print(f"{'case':24} {'GPUs':>4}  {'layout':28} {'trainings':>9} {'minutes':>8}")
    for each in plans:
        minutes = each.seconds / 60
        print(f"{each.case.name:24} {each.case.gpus:>4}  {each.layout:28} {each.trainings:>9} {minutes:>8.1f}")
    for gpus in sorted({each.case.gpus for each in plans}):
        same = [each for each in plans if each.case.gpus == gpus]
        minutes = sum(each.seconds for each in same) / 60
        print(f"{'sum':24} {gpus:>4}  {'':28} {sum(each.trainings for each in same):>9} {minutes:>8.1f}")
    print(f"checked by three-walls {describe_judges([each.case for each in plans], python)}")
    problems = [f"{each.case.name}: {problem}" for each in plans for problem in each.problems]
    print("\n".join(problems) or "no problems")
    return int(bool(problems))


def describe_judges(cases: Sequence[Case], python: str | None) -> str:
    """Whose judgement is shown beside that of three-walls."""
    if not python:
        return "(--python lets Megatron-Bridge judge, too)"
    unread = [case.name for case in cases if is_unread(case)]
    named = f" but for {', '.join(unread)}, whose recipes are in a file" if unread else ""
    return f"and by Megatron-Bridge{named}"


def is_unread(case: Case) -> bool:
    """Whether the runner that asks Megatron-Bridge does not read the case's recipe."""
    return case.recipes.endswith(".py")


def plan(cases: Sequence[Case], only: str | None = None, python: str | None = None) -> list[Plan]:
    """Check the cases. Raises NoBridgeError where ``python`` cannot import Megatron-Bridge."""
    runs = {case.name: list(runs_of(case, only)) for case in cases}
    answers = iter(ask_about([(case, edit) for case in cases for edit in runs[case.name]], python))
    plans = []
    importing = {same[0].name for same in alike(cases)}
    for case in cases:
        problems: dict[str, None] = {}
        layouts = []
        for edit in runs[case.name]:
            answer = next(answers)
            layouts.append(layout_of(case, edit, answer["values"]))
            for problem in (*check(case, edit, answer), *check_layout(case, layouts[-1])):
                problems.setdefault(f"{edit.name}: {problem}")
        trainings = sum(1 for _ in order(case)) if only != "capture" else 0
        is_captured = case.capture and only != "edits"
        seconds = estimate(case, only) + IMPORT_S * (case.name in importing)
        plans.append(Plan(case, show_layout(layouts[0]), trainings + is_captured, seconds, tuple(problems)))
    return plans


def runs_of(case: Case, only: str | None) -> Iterator[Edit]:
    """Each run that differs from the others: the base, as it is captured too, and the edits."""
    yield BASE
    if case.capture and only != "edits":
        yield replace(BASE, profiler="capture")
    if only != "capture":
        yield from case.edits


def ask_about(runs: Sequence[tuple[Case, Edit]], python: str | None) -> list[dict[str, Any]]:
    """What Megatron-Bridge makes of each run: the bridge runner's results. Empty ones without ``python``, and for
    recipes of a file, which the runner does not read."""
    nothing: dict[str, Any] = {"values": {}, "dump": {}, "message": ""}
    asked = [run for run in runs if python and not is_unread(run[0])]
    answers: list[dict[str, Any]] = []
    for models, same in groupby(asked, key=lambda run: run[0].models):
        request = {
            "gpu_name": GPU,
            "transformer_engine": "2.20.2",
            "models": str(models),
            "cases": [
                {
                    "recipe": case.recipe,
                    "prepare": PREPARE,
                    "overrides": overrides_of(case, edit, Path("out")),
                    "environment": {**case.environment, **edit.environment},
                    "world_size": case.gpus,
                    "show": list(SIZES.values()),
                    "dump": True,
                    "alone": False,
                }
                for case, edit in same
            ],
        }
        answers += ask_bridge(str(python), request)["results"]
    found = iter(answers)
    return [next(found) if run in asked else nothing for run in runs]


def check(case: Case, edit: Edit, answer: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the overrides of a run."""
    known = config_of_paths(answer["dump"]) if answer["dump"] else MergedConfig({})
    base = replace(known, platform={**PLATFORM, "world_size": case.gpus})
    overrides = overrides_of(case, edit, Path("out"))
    for note in check_overrides(overrides, base, RELEASE, {**case.environment, **edit.environment}).problems:
        if not note.text.startswith(DELIBERATE):
            yield note.text
    if answer["message"]:
        yield f"Megatron-Bridge: {answer['message']}"
    faults = case.faults if edit.faults is None else edit.faults
    for name, fault in faults.items():
        if isinstance(fault, dict) and fault.get("rank", 0) >= case.gpus:
            yield f"{name} needs rank {fault['rank']}"


def layout_of(case: Case, edit: Edit, values: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of a run by their short names: as Megatron-Bridge resolved them, or as the overrides say."""
    stated = dict(text.lstrip("+").split("=", 1) for text in overrides_of(case, edit, Path("out")))
    found = {path: yaml.safe_load(text) for path, text in stated.items() if path in SIZES.values()} | dict(values)
    return {name: found.get(path) or 1 for name, path in SIZES.items()} | {"gpus": case.gpus}


def show_layout(layout: Layout) -> str:
    copies = layout["gpus"] // (layout["tp"] * layout["pp"] * layout["cp"])
    sizes = {"DP": copies, "EP": layout["ep"], "TP": layout["tp"], "PP": layout["pp"], "VP": layout["vp"]}
    passes = layout["batch"] // (layout["micro"] * copies) if copies else 0
    return " ".join([*(f"{name}{size}" for name, size in sizes.items() if size > 1), f"{passes} x {layout['micro']}"])


def check_layout(case: Case, layout: Layout) -> Iterator[str]:
    """What does not divide. A run asserts it when its groups, its layers and its micro-batches are made."""
    gpus, tp, pp, vp = case.gpus, layout["tp"], layout["pp"], layout["vp"]
    copies = gpus // (tp * pp * layout["cp"])
    if gpus % (tp * pp * layout["cp"]):
        yield f"{gpus} GPUs do not divide into model copies of {tp * pp * layout['cp']}"
        return
    if gpus % (layout["ep"] * layout["etp"] * pp):
        yield f"{gpus} GPUs do not divide into expert groups of {layout['ep'] * layout['etp'] * pp}"
    if layout["experts"] % layout["ep"]:
        yield f"{layout['experts']} experts do not divide among {layout['ep']} ranks"
    if layout["layers"] % (pp * vp):
        yield f"{layout['layers']} layers do not divide among {pp * vp} stages"
    if layout["batch"] % (layout["micro"] * copies):
        yield f"{layout['batch']} sequences do not divide into micro-batches of {layout['micro']} on {copies} copies"
    elif vp > 1 and layout["batch"] // (layout["micro"] * copies) % pp:
        yield f"virtual stages need a multiple of {pp} micro-batches"


def estimate(case: Case, only: str | None) -> float:
    """About how many seconds the case takes, without the import."""
    edits = list(order(case)) if only != "capture" else []
    training = sum(case.start_s + (edit.iterations or case.iterations) * case.step_ms / 1000 for edit in edits)
    captured = case.capture and only != "edits"
    return training + captured * (case.start_s + REPORT_S + (case.iterations + 2) * case.step_ms / 1000)
