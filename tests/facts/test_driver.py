"""Facts and artifacts are functions of others: declared where they are made, found by their names, made once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from tests.try_each import try_each
from three_walls import pipeline
from three_walls.export.step_timeline import PlanChange
from three_walls.facts import sheet
from three_walls.lib.declare import CATALOG, Artifacts, Catalog
from three_walls.lib.measurement import Measurement, known, missing
from three_walls.runs import read_runs
from three_walls.step.attribute_steps import Attribution
from three_walls.step.build_timeline import Timeline
from three_walls.step.ranks.matched_ranks import MatchedRanks
from three_walls.step.step_view import RunView
from three_walls.trace.read_inputs import Inputs, Progress

GIVEN = {
    "inputs": Inputs,
    "timeline": Timeline,
    "matched_ranks": MatchedRanks,
    "attribution": Attribution,
    "progress": Progress,
    "late_ranks": tuple[int, ...],
    "plan_changes": tuple[PlanChange, ...],
}
"""What the pipeline makes itself."""


def unwrap(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Measurement else kind


def catalog_of_a_run() -> tuple[Catalog, list[str]]:
    """A step of two parts, and the list of what was made of it."""
    catalog, made = Catalog(), []

    @catalog.artifact
    def parts(step: int) -> tuple[int, int]:
        made.append("parts")
        return step // 4, step - step // 4

    @catalog.duration("the first part", share="first")
    def first_ns(parts: tuple[int, int]) -> int:
        """Time per step of the first part. Not the same as: Half of it."""
        return parts[0]

    @catalog.duration("the second part")
    def second_ns(parts: tuple[int, int], switch: bool) -> Measurement[int]:
        """Length of the second part."""
        return known(parts[1]) if switch else missing("it is switched off")

    @catalog.fact("text", "the reason in words")
    def reason(first_ns: int, second_ns: Measurement[int]) -> str:
        """Why the second part is missing."""
        return f"{first_ns}: {second_ns.missing_reason}"

    @catalog.fact("count", "what needs copies", needs=("copies",))
    def copies(step: int) -> int:
        """Copies of the step."""
        return step

    return catalog, made


def test_the_function_is_the_definition() -> None:
    definition = catalog_of_a_run()[0].declared["first_ns"].definition
    assert definition is not None
    assert (definition.name, definition.unit, definition.label) == ("first_ns", "ns", "the first part")
    assert (definition.meaning, definition.not_the_same_as) == ("Time per step of the first part.", "Half of it.")


def test_a_fact_is_made_from_the_facts_and_artifacts_that_its_parameters_name_each_once() -> None:
    catalog, made = catalog_of_a_run()
    run = Artifacts({"step": 100, "switch": True}, catalog)
    assert (run.named("first_ns"), run.named("second_ns")) == (known(25), known(75))
    assert made == ["parts"]


def test_what_is_made_from_something_missing_is_missing_for_the_same_reason() -> None:
    run = Artifacts({"step": missing("no step"), "switch": True}, catalog_of_a_run()[0])
    assert run.named("first_ns") == run.named("reason") == missing("no step")


def test_a_function_that_asks_for_the_reason_gets_it() -> None:
    run = Artifacts({"step": 100, "switch": False}, catalog_of_a_run()[0])
    assert run.named("reason") == known("25: it is switched off")


def test_a_share_of_the_step_is_declared_with_its_time_and_divided_by_the_step() -> None:
    catalog, _ = catalog_of_a_run()
    fraction = catalog.declared["first_fraction"].definition
    assert fraction is not None
    assert (fraction.numerator, fraction.denominator, fraction.label) == ("first_ns", "unpaused_step_ns", "first")
    assert fraction.meaning == "Fraction of the step of the first part."
    assert Artifacts({"step": 100, "unpaused_step_ns": 100}, catalog).named("first_fraction") == known(0.25)
    assert Artifacts({"step": 100, "unpaused_step_ns": missing("no step")}, catalog).named("first_fraction").is_missing


def test_without_what_the_trace_must_have_recorded_a_fact_is_missing() -> None:
    for state, found in (("yes", known(100)), ("no copies were recorded", missing("no copies were recorded"))):
        view = RunView(None, None, None, capabilities={"copies": state})  # type: ignore[arg-type]
        assert Artifacts({"step": 100, "run": view}, catalog_of_a_run()[0]).named("copies") == found


def test_with_other_inputs_only_what_follows_from_them_is_made_again() -> None:
    catalog, made = catalog_of_a_run()
    run = Artifacts({"step": 100, "switch": True}, catalog)
    run.named("reason")
    other = run.with_inputs({"switch": False})
    assert other.named("reason") == known("25: it is switched off")
    assert made == ["parts"]
    assert run.named("reason") == known("25: None")


def test_what_is_given_as_it_was_stays_and_so_does_what_follows_from_it_alone() -> None:
    catalog, made = catalog_of_a_run()
    run = Artifacts({"step": 100, "switch": True}, catalog)
    run.named("reason")
    other = run.with_inputs({"switch": False, "step": run.named("step")})
    assert other.named("reason") == known("25: it is switched off")
    assert made == ["parts"]
    longer = run.with_inputs({"step": 200, "parts": run.named("parts")})
    assert longer.named("first_ns") == known(25)
    assert run.with_inputs({"step": 200}).named("first_ns") == known(50)
    assert made == ["parts", "parts"]


def test_a_name_that_is_declared_twice_is_refused() -> None:
    catalog, _ = catalog_of_a_run()
    with pytest.raises(ValueError, match="parts is declared twice"):
        catalog.artifact(catalog.declared["parts"].function)


def test_a_unit_that_nothing_can_format_is_refused() -> None:
    def distance() -> int:
        return 1

    with pytest.raises(ValueError, match="parsecs is not a unit"):
        Catalog().fact("parsecs", "the distance")(distance)


@try_each(CATALOG.declared)
def test_a_parameter_names_something_that_is_made_and_has_its_type(name: str) -> None:
    declared = CATALOG.declared[name]
    expected = get_type_hints(declared.function)
    for parameter in declared.parameters:
        source = CATALOG.declared.get(parameter)
        assert source is not None or parameter in GIVEN, parameter
        if parameter not in expected:  # a quotient is declared without a function of its own
            continue
        kind = GIVEN[parameter] if source is None else get_type_hints(source.function)["return"]
        assert unwrap(expected[parameter]) == unwrap(kind), parameter


def test_nothing_is_made_from_itself() -> None:
    depths: dict[str, int] = dict.fromkeys(GIVEN, 0)
    left = dict(CATALOG.declared)
    while ready := [name for name, each in left.items() if all(source in depths for source in each.sources)]:
        for name in ready:
            depths[name] = 1 + max((depths[source] for source in left.pop(name).sources), default=0)
    assert not left


def test_every_artifact_is_used() -> None:
    """By another one, or by those who ask."""
    sources = {source for each in CATALOG.declared.values() for source in each.sources}
    asking = "".join(Path(str(module.__file__)).read_text() for module in (pipeline, read_runs, sheet))
    artifacts = {name for name, each in CATALOG.declared.items() if each.definition is None}
    assert [name for name in artifacts - sources if not re.search(rf"\b{name}\b", asking)] == []
