"""``three-walls rules``: what a rule author sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.advice.test_rulebase import RULE, rules_directory
from three_walls.cli.main import cli
from three_walls.lib.errors import RuleBaseError, UsageError
from three_walls.lib.resources import RULES_DIR

pytestmark = pytest.mark.slow

CASES = """\
rule: late-host
workload: {gpu.sm: sm_90, launch_starved_fraction: 0.5, world_size: 8}
cases:
  recommends where the host is late:
    expect: {outcome: OUTCOME}
"""


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["rules", *words], catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def own_rules(tmp_path: Path, outcome: str = "recommended") -> Path:
    directory = rules_directory(tmp_path, RULE)
    (directory / "compute-host" / "late-host.cases.yaml").write_text(CASES.replace("OUTCOME", outcome))
    return directory


@pytest.fixture
def own_alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """``rules test`` runs the cases of own rules and not those that ship: one test runs these, which takes 2 s."""
    monkeypatch.setattr("three_walls.cli.rules.RULES_DIR", tmp_path_factory.mktemp("no-rules"))


def test_own_rules_are_listed_with_the_built_in_rules(tmp_path: Path) -> None:
    _, listed = invoke("list", str(own_rules(tmp_path)))
    assert "late-host " in listed
    assert "ep-overlap " in listed
    assert "late-host " not in invoke("list")[1]


def test_a_rule_is_shown_as_its_file_is(tmp_path: Path) -> None:
    directory = own_rules(tmp_path)
    assert invoke("show", "late-host", str(directory)) == (0, RULE)
    assert invoke("show", "ep-overlap")[1] == (RULES_DIR / "communication" / "ep-overlap.yaml").read_text()


def test_control_characters_of_a_rule_are_spelled_out(tmp_path: Path) -> None:
    directory = own_rules(tmp_path)
    (directory / "compute-host" / "late-host.yaml").write_text(RULE + "# \x1b[2J", encoding="utf-8")
    assert invoke("show", "late-host", str(directory))[1] == RULE + "# \\x1b[2J"


def test_a_rule_that_is_not_text_is_one_sentence(tmp_path: Path) -> None:
    directory = own_rules(tmp_path)
    (directory / "compute-host" / "late-host.yaml").write_bytes(b"id: late-host \x8b")
    with pytest.raises(RuleBaseError, match=r"expected a rule \(YAML\), found a file that is not UTF-8 text"):
        invoke("show", "late-host", str(directory))


def test_an_unknown_id_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="expected the id of a rule, found 'nothing'"):
        invoke("show", "nothing")


@pytest.mark.exhaustive  # test_rule_cases.py tries each of those that ship, and below are own ones
def test_the_cases_of_own_rules_and_of_those_that_ship_pass(tmp_path: Path) -> None:
    code, output = invoke("test", str(own_rules(tmp_path)))
    assert (code, output.splitlines()[-1].endswith(" cases, 0 failed")) == (0, True)
    assert int(output.splitlines()[-1].split()[0]) > 700  # those that ship have 799


@pytest.mark.usefixtures("own_alone")
def test_a_case_that_fails_is_named(tmp_path: Path) -> None:
    code, output = invoke("test", str(own_rules(tmp_path, outcome="blocked")))
    assert code == 1
    assert "late-host: recommends where the host is late: outcome: expected blocked, found recommended" in output


@pytest.mark.usefixtures("own_alone")
def test_a_config_key_that_no_run_has_fails_the_test(tmp_path: Path) -> None:
    directory = own_rules(tmp_path)
    rule_path = directory / "compute-host" / "late-host.yaml"
    rule_path.write_text(RULE.replace("set: cuda_graph_scope", "set: cuda_graph_scop"), encoding="utf-8")
    code, output = invoke("test", str(directory))
    assert code == 1
    assert "late-host: unknown config key cuda_graph_scop (did you mean cuda_graph_scope?)" in output


@pytest.mark.usefixtures("own_alone")
def test_a_rule_without_cases_fails_the_test(tmp_path: Path) -> None:
    code, output = invoke("test", str(rules_directory(tmp_path, RULE)))
    assert (code, "late-host: has no cases" in output) == (1, True)


def test_errors_of_own_rules_are_listed_with_their_places(tmp_path: Path) -> None:
    directory = rules_directory(tmp_path, RULE.replace("launch_starved_fraction", "launch_starvd_fraction"))
    with pytest.raises(RuleBaseError, match=r"late-host.yaml:\d+:\d+: .*did you mean launch_starved_fraction"):
        invoke("check", str(directory))


def test_an_id_of_the_built_in_rules_cannot_be_used_again(tmp_path: Path) -> None:
    directory = rules_directory(tmp_path, RULE.replace("id: late-host", "id: ep-overlap"), name="ep-overlap")
    with pytest.raises(RuleBaseError, match=r"id ep-overlap is already that of communication/ep-overlap\.yaml"):
        invoke("check", str(directory))


@pytest.mark.usefixtures("own_alone")
def test_a_new_rule_loads_and_its_test_names_what_is_to_fill_in(tmp_path: Path) -> None:
    code, output = invoke("new", "late-python", "--wall", "compute_host", "--sub-wall", "host", "--into", str(tmp_path))
    assert (code, output.count("wrote ")) == (0, 2)
    assert invoke("check", str(tmp_path))[0] == 0
    code, output = invoke("test", str(tmp_path))
    assert code == 1
    assert "late-python: fill in late-python.yaml:6: title: TODO what to do" in output
    assert "late-python: fill in late-python.cases.yaml:12: TODO is recommended" in output
    assert "derived:" not in output


@pytest.mark.usefixtures("own_alone")
@pytest.mark.parametrize("wall", ["memory", "communication", "compute_host"])
def test_a_new_rule_passes_once_it_is_filled_in(tmp_path: Path, wall: str) -> None:
    sub_wall = ["--sub-wall", "host"] if wall == "compute_host" else []
    invoke("new", "some-rule", "--wall", wall, *sub_wall, "--into", str(tmp_path))
    for path in tmp_path.glob("*/*.yaml"):
        path.write_text(path.read_text(encoding="utf-8").replace("TODO", "Filled in:"), encoding="utf-8")
    for path in tmp_path.glob("*/*.cases.yaml"):
        path.write_text(path.read_text(encoding="utf-8").replace("Filled in: is", "is"), encoding="utf-8")
    for path in tmp_path.glob("*/some-rule.yaml"):
        path.write_text(path.read_text(encoding="utf-8").replace("Filled in: ", ""), encoding="utf-8")
    code, output = invoke("test", str(tmp_path))
    assert code == 0, output


def test_a_new_rule_needs_an_id_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ep-overlap is already the id of a rule"):
        invoke("new", "ep-overlap", "--wall", "communication", "--into", str(tmp_path))
    with pytest.raises(UsageError, match="expected an id like larger-micro-batch"):
        invoke("new", "Bad Id", "--wall", "memory", "--into", str(tmp_path))


def test_warnings_are_listed_with_their_conditions() -> None:
    listed = invoke("warnings")[1]
    assert "waiting-for-peers" in listed
    assert "wait_exposed_fraction >= 0.1" in listed
