"""overrides.txt works as its header states, with a real shell."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.sample_report import without_plan
from three_walls.advice.finding import ConditionalLines, Overrides
from three_walls.report.overrides_file import (
    ENTRY_HEAD,
    list_entry_files,
    list_forms,
    quote_megatron_lm,
    render_entries,
    render_overrides,
)
from three_walls.report.report import Report

ONE_PER_LINE = "printf '%s\\n'"


def run(command: str, folder: Path) -> list[str]:
    done = subprocess.run(["bash", "-c", command], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.fixture
def folder(report: Report, tmp_path: Path) -> Path:
    (tmp_path / "overrides.txt").write_text(render_overrides(report), encoding="utf-8")
    return tmp_path


def test_bridge_overrides_reach_the_recipe_as_they_are(report: Report, folder: Path) -> None:
    arguments = run(f"grep -vE '^(#|export |--|$)' overrides.txt | xargs {ONE_PER_LINE}", folder)
    assert arguments == list(report.overrides.bridge)


def test_megatron_flags_reach_the_script_word_by_word(folder: Path) -> None:
    arguments = run(f"grep '^--' overrides.txt | xargs {ONE_PER_LINE}", folder)
    assert arguments[:2] == ["--moe-token-dispatcher-type", "flex"]
    assert arguments[-4:] == ["--cuda-graph-scope", "attn", "moe_router", "moe_preprocess"]


def test_the_environment_can_be_sourced(folder: Path) -> None:
    command = ". <(grep '^export ' overrides.txt); printenv CUDA_DEVICE_MAX_CONNECTIONS"
    assert run(command, folder) == ["32"]


@pytest.mark.parametrize("value", ["$(touch broken)", "a b", "it's", "{a:1,b:[c]}", '"x"'])
def test_odd_values_are_neither_split_nor_run(report: Report, tmp_path: Path, value: str) -> None:
    odd = replace(report, overrides=Overrides("0.4.2", (f"model.x={value}",), (), {"X": value}))
    (tmp_path / "overrides.txt").write_text(render_overrides(odd), encoding="utf-8")
    bridge = run(f"grep -vE '^(#|export |--|$)' overrides.txt | xargs {ONE_PER_LINE}", tmp_path)
    assert bridge == [f"model.x={value}"]
    assert run(". <(grep '^export ' overrides.txt); printenv X", tmp_path) == [value]
    assert not (tmp_path / "broken").exists()


def test_each_word_of_a_flag_is_quoted_alone(tmp_path: Path) -> None:
    flags = ("--scope a [x]", "--layout Et*3|(tt|)*29m|L", "--it's $HOME")
    quoted = quote_megatron_lm(flags)
    assert quoted == ("--scope a '[x]'", "--layout 'Et*3|(tt|)*29m|L'", "'--it'\"'\"'s' '$HOME'")
    assert run(f"{ONE_PER_LINE} {' '.join(quoted)}", tmp_path) == [word for flag in flags for word in flag.split()]


def test_a_note_stays_a_comment_on_every_line(report: Report) -> None:
    noted = replace(report, overrides=replace(report.overrides, notes=("first\nrm -rf /",)))
    lines = render_overrides(noted).splitlines()
    assert "#   rm -rf /" in lines


def test_conditional_lines_are_comments_with_their_condition(report: Report, tmp_path: Path) -> None:
    apart = (
        ConditionalLines("bridge", "needs release 0.5 or later", ("model.x=[a]",)),
        ConditionalLines("megatron_lm", "needs Megatron Core 0.18 or later", ("--new-flag a [b]",)),
    )
    odd = replace(report, overrides=Overrides("0.4.2", ("model.y=1",), ("--old-flag",), {}, conditional=apart))
    text = render_overrides(odd)
    assert "# Megatron-Bridge: needs release 0.5 or later\n#   'model.x=[a]'" in text
    assert "# Megatron-LM: needs Megatron Core 0.18 or later\n#   --new-flag a '[b]'" in text
    (tmp_path / "overrides.txt").write_text(text, encoding="utf-8")
    assert run(f"grep '^--' overrides.txt | xargs {ONE_PER_LINE}", tmp_path) == ["--old-flag"]
    bridge = run(f"grep -vE '^(#|export |--|$)' overrides.txt | xargs {ONE_PER_LINE}", tmp_path)
    assert bridge == ["model.y=1"]
    titles = [title for _, title, _ in list_forms(odd.overrides)]
    assert titles[-2:] == [
        "Megatron-Bridge: needs release 0.5 or later",
        "Megatron-LM: needs Megatron Core 0.18 or later",
    ]


def test_a_plan_that_only_a_person_can_carry_out_still_says_what_to_do(report: Report) -> None:
    by_hand = replace(report, overrides=Overrides("0.4.2", (), (), {}, ("Megatron-LM: remove --use-x",)))
    assert "#   Megatron-LM: remove --use-x" in render_overrides(by_hand)


def test_an_empty_plan_says_so(report: Report) -> None:
    text = render_overrides(without_plan(report))
    assert "The plan is empty" in text
    assert all(line.startswith("#") for line in text.splitlines())


@pytest.fixture
def entries(report: Report, tmp_path: Path) -> Path:
    """A directory with the files of the entries."""
    return write_entries(report, tmp_path)


def write_entries(report: Report, folder: Path) -> Path:
    for path, text in render_entries(report).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def use_of(path: Path) -> str:
    """The command that the second line of an entry's file gives, with a program that prints its arguments."""
    line = path.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ")
    return re.sub(r"torchrun \S+ YOUR_FLAGS", ONE_PER_LINE, line)


def test_each_file_of_an_entry_works_as_it_states(report: Report, entries: Path) -> None:
    for step in report.plan:
        files = list_entry_files(step)
        assert step.overrides is not None
        assert run(use_of(entries / files["bridge"]), entries) == list(step.overrides.bridge)
        words = [word for flag in step.overrides.megatron_lm for word in flag.split(" ")]
        assert run(use_of(entries / files["megatron-lm"]), entries) == words
    variables = list_entry_files(report.plan[0])["env"]
    assert run(f"{use_of(entries / variables)}; printenv CUDA_DEVICE_MAX_CONNECTIONS", entries) == ["32"]
    assert "env" not in list_entry_files(report.plan[1])  # it sets none
    python = (entries / list_entry_files(report.plan[0])["python"]).read_text()
    assert "cfg.model.moe_router_dtype = 'fp32'" in python.splitlines()
    compile(python, "recipe", "exec")


def test_an_entry_that_cannot_be_applied_alone_has_no_files(report: Report) -> None:
    blocked = replace(report.plan[1], overrides=None, needs=(report.plan[0].rule,))
    assert list_entry_files(blocked) == {}
    assert set(render_entries(replace(report, plan=(report.plan[0], blocked)))) == set(
        list_entry_files(report.plan[0]).values()
    )
    assert render_entries(without_plan(report)) == {}


@pytest.mark.parametrize("value", ["$(touch broken)", "a b", "it's", "{a:1,b:[c]}", '"x"', "#y"])
def test_odd_values_of_an_entry_are_neither_split_nor_run(report: Report, tmp_path: Path, value: str) -> None:
    alone = Overrides("0.4.2", (f"model.x={value}",), ("--x [a]",), {"X": value}, ("first\nrm -rf /",))
    step = replace(report.plan[0], overrides=alone)
    folder = write_entries(replace(report, plan=(step,)), tmp_path)
    files = list_entry_files(step)
    assert run(use_of(folder / files["bridge"]), folder) == [f"model.x={value}"]
    assert run(use_of(folder / files["megatron-lm"]), folder) == ["--x", "[a]"]
    assert run(f"{use_of(folder / files['env'])}; printenv X", folder) == [value]
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("rule", ["../../etc/passwd", "a\nb", "A B", "\u202e", ""])
def test_the_name_of_a_rule_leads_nowhere_else(report: Report, rule: str) -> None:
    step = replace(report.plan[0], rule=rule, finding=replace(report.plan[0].finding, title="x\ntouch broken"))
    files = render_entries(replace(report, plan=(step,)))
    assert all(re.fullmatch(r"overrides/01-[a-z0-9-]+\.(bridge\.txt|megatron\.txt|env|py)", path) for path in files)
    assert all(ENTRY_HEAD.match(text) and "\ntouch" not in text for text in files.values())


def test_conditional_lines_of_an_entry_are_comments_in_the_file_of_their_launcher(report: Report) -> None:
    apart = (
        ConditionalLines("bridge", "needs release 0.5 or later", ("model.x=[a]",)),
        ConditionalLines("megatron_lm", "needs Megatron Core 0.18 or later", ("--new-flag",)),
    )
    step = replace(report.plan[0], overrides=Overrides("0.4.2", (), ("--old",), {}, conditional=apart))
    files = render_entries(replace(report, plan=(step,)))
    names = list_entry_files(step)
    assert set(names) == {"bridge", "megatron-lm"}
    bridge, flags = files[names["bridge"]], files[names["megatron-lm"]]
    assert "#   'model.x=[a]'" in bridge and "new-flag" not in bridge
    assert "#   --new-flag" in flags and "model.x" not in flags
    assert all(line.startswith("#") for line in bridge.splitlines())
