"""``three-walls rules``: what a rule author sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.rules.test_rulebase import RULE, rules_directory
from three_walls.cli.main import cli
from three_walls.model.errors import RuleBaseError, UsageError

CASES = """\
rule: late-host
workload: {gpu.sm: sm_90, launch_starved_fraction: 0.5, gpus_per_node: 8}
cases:
  recommends where the host is late:
    expect: {outcome: OUTCOME}
"""


def say(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["rules", *words], catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def own_rules(tmp_path: Path, outcome: str = "recommended") -> Path:
    directory = rules_directory(tmp_path, RULE)
    (directory / "compute-host" / "late-host.cases.yaml").write_text(CASES.replace("OUTCOME", outcome))
    return directory


def test_own_rules_stand_beside_the_built_in_ones(tmp_path: Path) -> None:
    _, listed = say("list", str(own_rules(tmp_path)))
    assert "late-host " in listed
    assert "ep-overlap " in listed
    assert "late-host " not in say("list")[1]


def test_one_rule_is_shown_with_its_conditions_edits_and_evidence(tmp_path: Path) -> None:
    _, shown = say("show", "late-host", str(own_rules(tmp_path)))
    assert "late-host: Launch earlier" in shown
    assert "launch_starved_fraction at least 0.1" in shown
    assert "set cuda_graph_scope to [moe_router]" in shown
    assert "set SOME_VARIABLE to the value of gpus_per_node" in shown
    assert "0.2 to 0.6 of launch_starved_ns, likely 0.4" in shown
    assert "for: it helped (mcore:a/b.py:3)" in shown


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        (
            "dispatch-backward-overlap",
            [
                "up to 1 of ep_transfer_exposed_ns",
                "no more than expert_backward_gemm_ns",
                "no more than dispatch_backward_exposed_ns",
                "upper_bound: At most the exposed transfer",
            ],
        ),
        (
            "distributed-optimizer",
            ["frees memory, costs about 1.5% of the step", "frees_memory: It saves the optimizer state"],
        ),
    ],
)
def test_a_ceiling_and_room_are_shown_with_their_figures(rule: str, lines: list[str]) -> None:
    shown = say("show", rule)[1]
    assert [line for line in lines if f"\n  {line}" not in shown] == []


def test_an_unknown_id_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="expected the id of a rule, found 'nothing'"):
        say("show", "nothing")


def test_cases_that_pass_and_one_that_fails(tmp_path: Path) -> None:
    code, output = say("test", str(own_rules(tmp_path)))
    assert (code, output.splitlines()[-1].endswith(" cases, 0 failed")) == (0, True)
    code, output = say("test", str(own_rules(tmp_path, outcome="blocked")))
    assert code == 1
    assert "late-host: recommends where the host is late: outcome: expected blocked, found recommended" in output


def test_a_rule_without_cases_fails_the_test(tmp_path: Path) -> None:
    code, output = say("test", str(rules_directory(tmp_path, RULE)))
    assert (code, "late-host: has no cases" in output) == (1, True)


def test_errors_of_own_rules_are_listed_with_their_places(tmp_path: Path) -> None:
    directory = rules_directory(tmp_path, RULE.replace("launch_starved_fraction", "launch_starvd_fraction"))
    with pytest.raises(RuleBaseError, match=r"late-host.yaml:\d+:\d+: .*did you mean launch_starved_fraction"):
        say("check", str(directory))


def test_an_id_of_the_built_in_rules_cannot_be_used_again(tmp_path: Path) -> None:
    directory = rules_directory(tmp_path, RULE.replace("id: late-host", "id: ep-overlap"), name="ep-overlap")
    with pytest.raises(RuleBaseError, match=r"id ep-overlap is already that of communication/ep-overlap\.yaml"):
        say("check", str(directory))
