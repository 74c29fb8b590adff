"""The commands that capture a run."""

from __future__ import annotations

import lzma
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.fake_nsys import calls_of, make_fake_nsys
from tests.paths import REPOSITORY
from three_walls.capture.capture_commands import (
    CaptureRequest,
    count_ranks,
    find_launcher,
    make_recipe,
    nsys_options,
    profiler_words,
    read_ranks,
    read_steps,
    spell_settings,
    wrap,
)
from three_walls.capture.capture_guide import CaptureRules, capture_rules
from three_walls.cli.capture import format_recipe
from three_walls.lib.errors import RuleBaseError, UsageError
from three_walls.lib.load_documents import load_table
from three_walls.megatron.settings.option_words import read_command_line

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


TORCHRUN = """#!{python} -IS
import os, subprocess, sys
words = sys.argv[sys.argv.index("--no-python") + 1:]
for rank in (0, 1):
    subprocess.run(words, env=os.environ | {{"RANK": str(rank)}}, check=True)
"""
RECIPE = """
import sys
for word in sys.argv[1:]:
    path, _, value = word.partition("=")
    if path == "logger.save_config_filepath":
        open(value, "w").write("train: {}")
print(" elapsed time per iteration (ms): 5.0 |")
"""


def test_the_script_keeps_all_that_the_analysis_then_asks_for(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("an export")
    nsys = make_fake_nsys(tmp_path / "bin", tmp_path / "x")
    programs = {"torchrun": TORCHRUN.format(python=sys.executable), "three-walls": '#!/bin/sh\necho "$@" >> commands\n'}
    for name, text in programs.items():
        (nsys.parent / name).write_text(text)
        (nsys.parent / name).chmod(0o755)
    (nsys.parent / "python").symlink_to(sys.executable)
    (tmp_path / "run_recipe.py").write_text(RECIPE)
    (tmp_path / "capture.sh").write_text(format_recipe(make_recipe(request())))
    environment = os.environ | {"PATH": f"{nsys.parent}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "capture.sh"], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert calls_of(nsys.parent) == ["profile", "profile", "export", "export"]
    left = sorted(path.name for path in (tmp_path / "profiles").iterdir() if path.suffix != ".nsys-rep")
    assert left == ["rank0.sqlite", "rank1.sqlite", "run_config.yaml", "train.log"]
    assert (tmp_path / "profiles" / "train.log").read_text().count("elapsed time per iteration (ms): 5.0") == 2
    assert (tmp_path / "commands").read_text().splitlines() == [
        "doctor profiles/",
        "analyze profiles/ --log profiles/ --config profiles/run_config.yaml --out report",
    ]


@pytest.mark.parametrize("release", ["0.3.1", "0.4.2", "0.5.1", "0.6.2"])
def test_the_profiling_section_is_of_the_class_that_every_release_has(release: str) -> None:
    saved = lzma.decompress((REPOSITORY / "tests" / "bridge_runs" / release / "run_config.yaml.xz").read_bytes())
    name = capture_rules().profiling_class.removeprefix("++profiling._target_=")
    assert f"profiling:\n  _target_: {name}\n" in saved.decode()


def test_megatron_lm_saves_no_configuration_and_is_not_asked_for_one() -> None:
    text = format_recipe(make_recipe(request(framework="megatron-lm")))
    assert "three-walls analyze profiles/ --log profiles/ --out report" in text
    assert "save_config" not in text


def test_launches_on_several_nodes_do_not_share_a_log() -> None:
    command = ("torchrun", "--nnodes", "2", "--nproc-per-node", "8", "pretrain_gpt.py")
    assert 'tee "profiles/train${NODE_RANK:-${SLURM_NODEID:-0}}.log"' in format_recipe(
        make_recipe(request(command=command))
    )
    assert "tee profiles/train.log" in format_recipe(make_recipe(request()))


def test_by_default_four_steps_are_clean() -> None:
    rules = capture_rules()
    assert rules.last_step - rules.first_step - 2 == 4
    assert "so 4 are clean" in " ".join(make_recipe(request(end_step=rules.last_step))[1].reasons)


@pytest.mark.parametrize(
    ("launcher", "local_rank"), [("torchrun", "LOCAL_RANK"), ("srun", "SLURM_LOCALID"), ("torchrun", None)]
)
def test_hardware_counters_of_the_gpu_of_each_rank_only_when_asked_for(launcher: str, local_rank: str | None) -> None:
    printed = format_recipe(make_recipe(request(launcher=launcher, recorded=("gpu_metrics",) if local_rank else ())))
    begin = f"""sh -c 'exec nsys profile --gpu-metrics-device=${local_rank} "$@"' nsys --trace=cuda,nvtx"""
    assert (begin in printed) is (local_rank is not None)
    assert ("gpu-metrics" in printed) is (local_rank is not None)
    assert printed.count("--trace=cuda,nvtx --sample") == 1


def test_each_rank_samples_its_own_gpu_when_a_shell_runs_the_recipe(tmp_path: Path) -> None:
    """The printed words, run as one rank: nsys gets the options, then the program, whatever its words are."""
    (tmp_path / "nsys").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "nsys").chmod(0o755)
    words = [*profiler_words("torchrun", {"gpu_metrics"}), "python", "train.py", "'a b'"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOCAL_RANK": "3"}
    done = subprocess.run(["sh", "-c", " ".join(words)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "profile",
        "--gpu-metrics-device=3",
        *nsys_options(()),
        "-o",
        "profiles/rank%q{RANK}",
        "python",
        "train.py",
        "a b",
    ]


@pytest.mark.parametrize(
    ("name", "option"), [("memory", "--cuda-memory-usage=true"), ("python_sampling", "--python-sampling=true")]
)
@pytest.mark.parametrize("is_asked", [True, False])
def test_memory_and_stacks_of_python_are_recorded_only_when_asked_for(name: str, option: str, is_asked: bool) -> None:
    recorded = frozenset({name} if is_asked else ())
    assert (option in format_recipe(make_recipe(request(recorded=recorded)))) is is_asked


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
