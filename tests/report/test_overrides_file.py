"""overrides.txt works as its header states, with a real shell."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.sample_report import without_plan
from three_walls.model.finding import Overrides
from three_walls.model.report import Report
from three_walls.report.overrides_file import quote_megatron_lm, render_overrides

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
    quoted = quote_megatron_lm(Overrides("", (), flags, {}))
    assert quoted == ("--scope a '[x]'", "--layout 'Et*3|(tt|)*29m|L'", "'--it'\"'\"'s' '$HOME'")
    assert run(f"{ONE_PER_LINE} {' '.join(quoted)}", tmp_path) == [word for flag in flags for word in flag.split()]


def test_a_note_stays_a_comment_on_every_line(report: Report) -> None:
    noted = replace(report, overrides=replace(report.overrides, notes=("first\nrm -rf /",)))
    lines = render_overrides(noted).splitlines()
    assert "#   rm -rf /" in lines


def test_a_plan_that_only_a_person_can_carry_out_still_says_what_to_do(report: Report) -> None:
    by_hand = replace(report, overrides=Overrides("0.4.2", (), (), {}, ("Megatron-LM: remove --use-x",)))
    assert "#   Megatron-LM: remove --use-x" in render_overrides(by_hand)


def test_an_empty_plan_says_so(report: Report) -> None:
    text = render_overrides(without_plan(report))
    assert "The plan is empty" in text
    assert all(line.startswith("#") for line in text.splitlines())
