"""What every rule of the rule base must have, whoever writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

import pytest
import yaml

from tests.paths import REPOSITORY
from tests.try_each import try_each
from three_walls.advice.format.conditions import KnownFacts, list_conditions
from three_walls.advice.format.load_rules import cases_file, load_rule_base, rule_files
from three_walls.advice.format.rule import Claim, Edit, FactTarget, Rule, TimeShare
from three_walls.advice.format.rule_fields import OneMinusFact
from three_walls.advice.format.rule_sources import check_pointer, load_sources
from three_walls.advice.judge import judge_with_size
from three_walls.advice.testing.derive_cases import derive_cases
from three_walls.advice.testing.rule_cases import Case, load_cases, sheet_of
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.expressions import ORDERED, Clause, Condition, Junction
from three_walls.lib.fact import FactSheet
from three_walls.lib.resources import RULES_DIR, TABLES_DIR
from tools.generate_rules_index import INDEX, index_of

pytestmark = pytest.mark.slow

unit_of = KnownFacts.of(DEFINITIONS).unit_of
RULES = load_rule_base(DEFINITIONS).rules
each_rule = try_each(RULES, lambda rule: rule.id)


def edits_of(rule: Rule) -> Iterator[Edit]:
    yield from rule.edits
    for requirement in rule.requires.values():
        yield from requirement.fix


@cache
def cases_of(rule_id: str) -> tuple[tuple[Case, FactSheet], ...]:
    """The written and derived cases of a rule, with the facts they are judged on."""
    path = next(path for path in rule_files(RULES_DIR) if path.stem == rule_id)
    written = load_cases(cases_file(path), definitions=DEFINITIONS)
    derived, _ = derive_cases(next(rule for rule in RULES if rule.id == rule_id), written)
    return tuple((case, written.facts_of(case)) for case in (*written.cases, *derived))


def conditions_of(rule: Rule) -> Iterator[Condition]:
    yield from list_conditions((*rule.applies_to, *rule.when, *rule.unless))
    for requirement in rule.requires.values():
        yield from list_conditions(requirement.check)
    for edit in edits_of(rule):
        yield from list_conditions(edit.only_if)


def test_there_is_a_rule_for_each_wall() -> None:
    assert {rule.wall.value for rule in RULES} == {"memory", "communication", "compute_host"}


def test_ids_are_the_file_names_in_order() -> None:
    assert [rule.id for rule in RULES] == sorted(path.stem for path in rule_files(RULES_DIR))


@each_rule
def test_docs_say_what_why_and_how(rule: Rule) -> None:
    for text in (rule.docs.what_it_looks_for, rule.docs.why_it_matters, rule.docs.how_to_verify):
        assert text.endswith((".", "?")), text
        assert len(text) > 40
    assert not rule.title.endswith(".")


@each_rule
def test_every_fact_is_defined(rule: Rule) -> None:
    names = [condition.name for condition in conditions_of(rule)]
    names += [name for share in rule.gain.at_most for name in share.facts]
    names += [edit.to.fact for edit in rule.edits if isinstance(edit.to, FactTarget)]
    assert [name for name in names if unit_of(name) is None] == []


@each_rule
def test_every_pointer_leads_to_a_known_source(rule: Rule) -> None:
    sources = load_sources(RULES_DIR / "sources.yaml")
    pointers = [one.source for one in (*rule.requires.values(), *rule.evidence.for_, *rule.evidence.against)]
    pointers += [edit.source for edit in edits_of(rule) if edit.source]
    assert pointers
    for pointer in pointers:
        assert check_pointer(pointer, sources) == ""


COUNTER_CLAIMS = [
    pytest.param(rule, claim, id=f"{rule.id}: {claim.claim[:40]}")
    for rule in RULES
    for claim in (*rule.evidence.for_, *rule.evidence.against)
    if claim.when
]


@pytest.mark.parametrize(("rule", "claim"), COUNTER_CLAIMS)
def test_a_claim_about_this_run_stands_only_where_the_run_shows_it(rule: Rule, claim: Claim) -> None:
    """With its figures; not where a single one is missing or beyond its limit."""

    def is_shown(values: Mapping[str, float | str | None]) -> bool:
        finding = judge_with_size(rule, sheet_of(values, KnownFacts.of(DEFINITIONS)))
        notes = [note.text for note in (*finding.evidence_for, *finding.evidence_against)]
        return any(text.startswith(f"{claim.claim}. ") for text in notes)

    holding: dict[str, float | str | None] = {}
    failing: dict[str, float | str | None] = {}
    for condition in list_conditions(claim.when):
        limit = condition.value
        if limit is None:
            unset, given = (holding, failing) if condition.operator == "is" else (failing, holding)
            unset[condition.name], given[condition.name] = None, "given"
        elif isinstance(limit, bool):
            holding[condition.name], failing[condition.name] = limit, not limit
        elif isinstance(limit, str):
            holding[condition.name], failing[condition.name] = limit, f"not {limit}"
        else:
            assert isinstance(limit, int | float)
            above, below = limit + 0.01, max(0, limit - 0.01)
            is_least = condition.operator in (">=", ">")
            holding[condition.name], failing[condition.name] = (above, below) if is_least else (below, above)
    assert is_shown(holding)
    for name, value in failing.items():
        assert not is_shown({**holding, name: value})
        assert not is_shown({other: kept for other, kept in holding.items() if other != name})


@each_rule
def test_every_requirement_and_gain_says_why(rule: Rule) -> None:
    assert all(one.reason and one.source for one in rule.requires.values())
    assert rule.gain.explanation
    assert all(advice.text.endswith(".") for advice in rule.advice)
    assert rule.evidence.for_


@each_rule
def test_every_rule_has_the_cases_that_show_its_limits(rule: Rule) -> None:
    cases = cases_of(rule.id)
    outcomes = {case.expect.outcome for case, _ in cases}
    assert outcomes >= {"recommended" if rule.edits else "found", "not_needed"}
    assert ("not_applicable" in outcomes) == bool(rule.applies_to)
    assert "unknown" in outcomes or not (rule.applies_to or rule.when)
    can_fail = [requirement for requirement in rule.requires.values() if requirement.check and not requirement.fix]
    assert ("blocked" in outcomes) == bool(can_fail and rule.edits)
    assert any(case.expect.missing and case.without for case, _ in cases if case.expect.outcome == "unknown")
    assert all(case.expect.blocked_by for case, _ in cases if case.expect.outcome == "blocked")


@each_rule
def test_some_case_is_silent_just_beyond_each_measured_threshold(rule: Rule) -> None:
    for condition in list_conditions(rule.when):
        if condition.operator != ">=" or unit_of(condition.name) != "fraction":
            continue
        limit = condition.value
        assert isinstance(limit, float)
        given = [
            (value, case.expect.outcome)
            for case, facts in cases_of(rule.id)
            if isinstance(value := facts.get(condition.name).value, float)
        ]
        assert any(0.95 * limit <= value < limit and outcome == "not_needed" for value, outcome in given)
        assert any(value == limit and outcome in ("recommended", "found") for value, outcome in given)


@each_rule
def test_every_setting_is_a_known_config_key(rule: Rule) -> None:
    keys = {edit.key for edit in edits_of(rule) if edit.kind == "config"}
    compared = {c.name.removeprefix("config.") for c in conditions_of(rule) if c.name.startswith("config.")}
    assert (keys | compared) - known_keys() == set()


@cache
def known_keys() -> frozenset[str]:
    return frozenset(yaml.safe_load((TABLES_DIR / "config-keys.yaml").read_text(encoding="utf-8"))["keys"])


def test_the_index_of_rules_is_up_to_date() -> None:
    base = load_rule_base(DEFINITIONS)
    expected = index_of(base.rules, base.effects, base.warnings)
    assert INDEX.read_text(encoding="utf-8") == expected, "run python -m tools.generate_rules_index"


def next_to(operand: int | float) -> tuple[int | float, ...]:
    """Thresholds just above and just below."""
    if isinstance(operand, int):
        return operand + 1, operand - 1
    return operand * 1.02, operand * 0.98


def with_condition(rule: Rule, old: Condition, new: Condition | None) -> Rule:
    """``rule`` with one condition replaced, or left out. The same words elsewhere are another condition."""

    def swap(clauses: tuple[Clause, ...]) -> tuple[Clause, ...]:
        changed = [new if one is old else swap_parts(one) for one in clauses]
        return tuple(one for one in changed if one is not None)

    def swap_parts(clause: Clause) -> Clause:
        return replace(clause, parts=swap(clause.parts)) if isinstance(clause, Junction) else clause

    def swap_in_edits(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        return tuple(replace(edit, only_if=swap(edit.only_if)) for edit in edits)

    return replace(
        rule,
        applies_to=swap(rule.applies_to),
        when=swap(rule.when),
        unless=swap(rule.unless),
        requires={
            name: replace(one, check=swap(one.check), fix=swap_in_edits(one.fix)) for name, one in rule.requires.items()
        },
        edits=swap_in_edits(rule.edits),
    )


def notices(rule: Rule) -> bool:
    """Whether some case of the rule of this id fails for ``rule``."""
    return any(case.expect.mismatches(judge_with_size(rule, facts)) for case, facts in cases_of(rule.id))


@each_rule
def test_some_case_notices_each_threshold_that_moves(rule: Rule) -> None:
    for condition in conditions_of(rule):
        if condition.operator not in ORDERED:
            continue
        assert isinstance(condition.value, int | float)
        for moved in next_to(condition.value):
            mutant = with_condition(rule, condition, replace(condition, value=moved))
            assert notices(mutant), f"{condition}, not {moved}"


@each_rule
def test_some_case_notices_each_condition_that_is_left_out(rule: Rule) -> None:
    for condition in conditions_of(rule):
        assert notices(with_condition(rule, condition, None)), str(condition)


def mutants_of_share(share: TimeShare) -> tuple[TimeShare, ...]:
    """``share`` 2% larger and smaller; where a fact gives it, without the fact."""
    if isinstance(share.share, OneMinusFact):
        return (replace(share, share=1.0),)
    return replace(share, share=share.share * 1.02), replace(share, share=share.share * 0.98)


@each_rule
def test_some_case_notices_each_share_of_an_upper_bound_that_moves(rule: Rule) -> None:
    for share in rule.gain.at_most:
        for mutant in mutants_of_share(share):
            at_most = tuple(mutant if one is share else one for one in rule.gain.at_most)
            assert notices(replace(rule, gain=replace(rule.gain, at_most=at_most))), f"{share.time} {mutant.share}"


@each_rule
def test_some_case_notices_each_limit_of_an_upper_bound_that_is_left_out(rule: Rule) -> None:
    for name in rule.gain.within:
        within = tuple(other for other in rule.gain.within if other != name)
        assert notices(replace(rule, gain=replace(rule.gain, within=within))), name


@each_rule
def test_some_case_leaves_out_an_upper_bound_that_is_too_small_to_measure(rule: Rule) -> None:
    if not rule.gain.at_most or not rule.edits:
        return
    endless = replace(rule, gain=replace(rule.gain, at_most=(), within=()))
    silent = [facts for case, facts in cases_of(rule.id) if case.expect.outcome == "not_needed"]
    assert any(judge_with_size(endless, facts).outcome == "recommended" for facts in silent)


@pytest.mark.parametrize("folder", ["rules", "tables", "docs", "three_walls"])
def test_percent_signs_touch_their_number(folder: str) -> None:
    """As the report writes its shares: ``33.6%``. The remainder of a division is written with spaces on both sides."""
    texts = [path for path in (REPOSITORY / folder).rglob("*") if path.suffix in {".yaml", ".md", ".html", ".py"}]
    apart = re.compile(r"""[0-9}] %(?! [\w(])|[0-9}] % (of|more|less|longer|in|for)\b""")
    assert texts
    assert [path for path in texts if apart.search(path.read_text(encoding="utf-8"))] == []
