"""The commands that capture a run."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from three_walls.captures.launch import (
    CaptureRequest,
    count_ranks,
    find_launcher,
    make_recipe,
    read_ranks,
    read_steps,
    spell_settings,
    wrap,
)
from three_walls.cli.capture import format_recipe
from three_walls.inputs.config.command_line import read_command_line
from three_walls.model.errors import RuleBaseError, UsageError
from three_walls.tables.capture import CaptureRules, capture_rules
from three_walls.tables.loader import load_table

NSYS = ("nsys", "profile", "-o", "'rank%q{RANK}'")


def request(**changes: object) -> CaptureRequest:
    given = {"launcher": "torchrun", "framework": "bridge", "first_step": 10, "end_step": 14, "ranks": (0, 1)}
    return CaptureRequest(**(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "wrapped"),
    [
        (
            "torchrun --nproc-per-node 8 train.py --x 1",
            "torchrun --nproc-per-node 8 --no-python NSYS python train.py --x 1 END",
        ),
        ("torchrun --no-python train.py", "torchrun --no-python NSYS python train.py END"),
        ("torchrun -m pkg.train --x", "torchrun --no-python NSYS python -m pkg.train --x END"),
        (
            "python -m torch.distributed.run train.py",
            "python -m torch.distributed.run --no-python NSYS python train.py END",
        ),
        ("srun -N 2 python3.11 -u train.py", "srun -N 2 NSYS python3.11 -u train.py END"),
        ("srun python -m pkg.train", "srun NSYS python -m pkg.train END"),
        ("python train.py 'a b'", "NSYS python train.py 'a b' END"),
        ("./train.py", "NSYS ./train.py END"),
        ("A=1 torchrun train.py", "A=1 torchrun --no-python NSYS python train.py END"),
    ],
)
def test_the_profiler_goes_between_the_launcher_and_the_program(command: str, wrapped: str) -> None:
    assert wrap(shlex.split(command), ["NSYS"], ["END"]) == wrapped


def test_a_command_without_a_python_program_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a command that runs a Python file"):
        wrap(["srun", "./train.sh"], NSYS, [])


@pytest.mark.parametrize(
    ("command", "launcher"),
    [("/usr/bin/srun x.py", "srun"), ("A=1 torchrun x.py", "torchrun"), ("python x.py", None), ("", None)],
)
def test_the_launcher_is_known_by_the_first_word(command: str, launcher: str | None) -> None:
    assert find_launcher(command.split()) == launcher


def test_the_settings_read_back_as_they_were_meant() -> None:
    settings = {"use_nsys_profiler": True, "profile_step_start": 10, "profile_ranks": (0, 3)}
    bridge = read_command_line(["python", "run_recipe.py", *shlex.split(" ".join(spell_settings(settings, "bridge")))])
    others = "--num-layers 4 --hidden-size 8".split()  # noqa: SIM905
    megatron = read_command_line(["python", "pretrain_gpt.py", *others, *spell_settings(settings, "megatron-lm")])
    for found in (bridge, megatron):
        assert {key: found.values[key].value for key in settings} == settings


def test_a_recipe_is_a_shell_script_with_reasons(tmp_path: Path) -> None:
    script = tmp_path / "capture.sh"
    script.write_text(format_recipe(make_recipe(request())))
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    text = script.read_text()
    assert "--capture-range=cudaProfilerApi --capture-range-end=stop" in text
    assert "'++profiling.profile_ranks=[0,1]'" in text
    assert all(line == "" or line.startswith("#") or " " in line for line in text.splitlines())


@pytest.mark.parametrize("memory", [True, False])
def test_memory_is_recorded_only_when_asked_for(memory: bool) -> None:
    assert ("--cuda-memory-usage=true" in format_recipe(make_recipe(request(memory=memory)))) is memory


def test_reports_are_named_by_the_variable_of_the_launcher() -> None:
    assert "rank%q{RANK}" in format_recipe(make_recipe(request()))
    assert "rank%q{SLURM_PROCID}" in format_recipe(make_recipe(request(launcher="srun", framework="megatron-lm")))


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --nproc-per-node 2 train.py", 2),
        ("torchrun --standalone --nproc_per_node=16 --nnodes=1 train.py", 16),
        ("torchrun --nproc-per-node 8 --nnodes 4 train.py", None),  # more ranks than this node's
        ("torchrun --nproc-per-node gpu train.py", None),
        ("srun -n 4 python train.py", None),
        ("", None),
    ],
)
def test_a_launch_on_one_node_states_how_many_ranks_it_has(command: str, ranks: int | None) -> None:
    assert count_ranks(command.split()) == ranks


def test_ranges_that_slow_every_iteration_are_not_asked_for() -> None:
    assert "nvtx_ranges=true" not in format_recipe(make_recipe(request()))
    assert "profiling.record_shapes=true" in format_recipe(make_recipe(request()))


@pytest.mark.parametrize("text", ["10", "a-b", "12-14", "14-10", "10-10", "1-99999999999"])
def test_steps_that_leave_no_clean_one_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--steps: expected"):
        read_steps(text)


def test_three_steps_are_enough_and_ranks_are_ranges() -> None:
    assert read_steps("12-15") == (12, 15)
    assert read_ranks("0-2,8, 1") == (0, 1, 2, 8)


@pytest.mark.parametrize("text", ["", "x", "3-1", "0-999999", "1,,2"])
def test_ranks_that_are_no_ranks_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ranks: expected"):
        read_ranks(text)


def test_every_problem_of_the_rules_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "capture.yaml"
    path.write_text(
        "first_step: 1\nlast_step: 5\nminimum_steps: 3\nmaximum_overhead_fraction: 0.1\ndropped: ['(']\nusual: []\n"
        "nsys: []\ncapabilities:\n  x: {title: t, claims: [c], remedy: r, settings: {profile_rank: [0]}}\n"
    )
    with pytest.raises(RuleBaseError) as caught:
        load_table(path, CaptureRules)
    assert "did you mean profile_ranks?" in str(caught.value)
    assert "not a regular expression" in str(caught.value)


def test_options_that_capabilities_name_are_options_of_the_recipe() -> None:
    known = {row.option for row in capture_rules().nsys}
    assert {option for capability in capture_rules().capabilities.values() for option in capability.nsys} <= known
