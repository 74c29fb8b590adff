"""What is added to the command of a program that is profiled, and what never is."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from three_walls.capture.attach.attach_job import find_gpu, make_directory, read_job
from three_walls.capture.attach.attach_settings import (
    add_settings,
    check_command,
    count_steps,
    find_framework,
    read_profile_ranks,
)
from three_walls.capture.capture_commands import CaptureRequest
from three_walls.lib.errors import UsageError
from three_walls.megatron.settings.launchers import find_program
from three_walls.megatron.settings.option_words import read_command_line

LM = "python pretrain_gpt.py --num-layers 4 --hidden-size 8 --seq-length 16"
BRIDGE = "python run_recipe.py --recipe qwen3"


def added(command: str, framework: str | None = None) -> list[str]:
    words = tuple(shlex.split(command))
    framework = framework or find_framework(words)
    request = CaptureRequest("torchrun", framework or "bridge", 10, 16, (0, 1), command=words)
    return list(add_settings(request, framework, Path("/out/run_config.yaml"))[0])


def test_megatron_lm_gets_flags() -> None:
    expected = "--profile --profile-step-start 10 --profile-step-end 16 --profile-ranks 0 1 --log-interval 1"
    assert added(LM) == expected.split()


def test_megatron_bridge_gets_overrides_that_need_no_profiling_section_and_saves_its_configuration() -> None:
    words = added(BRIDGE)
    assert words[0] == "++profiling._target_=megatron.bridge.training.config.ProfilingConfig"
    assert "++profiling.profile_ranks=[0,1]" in words
    assert words[-1] == "logger.save_config_filepath=/out/run_config.yaml"
    read = read_command_line([*BRIDGE.split(), *words]).values
    assert {key: read[key].value for key in ("use_nsys_profiler", "profile_step_end", "log_interval")} == {
        "use_nsys_profiler": True,
        "profile_step_end": 16,
        "log_interval": 1,
    }


def test_what_the_command_states_stays() -> None:
    assert added(f"{LM} --profile-step-start 20 --log-interval 5") == ["--profile", "--profile-ranks", "0", "1"]
    words = added(f"{BRIDGE} logger.save_config_filepath=/mine.yaml")
    assert not any(word.startswith("logger.save_config_filepath") for word in words)
    assert read_profile_ranks(f"{LM} --profile-ranks 3 4".split()) == (3, 4)
    assert read_profile_ranks(LM.split()) is None


@pytest.mark.parametrize("command", ["python train.py --epochs 3", "./program", f"bash -c '{LM}'"])
def test_nothing_is_added_to_a_program_that_is_neither_or_that_a_shell_would_not_pass_it_to(command: str) -> None:
    assert added(command) == []


def test_a_string_for_a_shell_that_runs_the_words_behind_it_passes_settings_on() -> None:
    assert added(f"""bash -c 'RANK=1 exec "$0" "$@"' {LM}""")[0] == "--profile"
    assert added(f"""bash -lc 'exec "$@"' bash {LM}""")[0] == "--profile"
    assert find_program(["bash", "-c", "python train.py $@", "bash", "--x"]).script == "train.py"


def test_a_script_of_ones_own_can_be_named_as_one_of_them() -> None:
    assert "--profile" in added("bash train.sh", "megatron-lm")


def test_a_run_that_ends_before_the_capture_does_is_named() -> None:
    request = CaptureRequest("torchrun", "megatron-lm", 10, 16, (0,), command=(*LM.split(), "--train-iters", "12"))
    assert "it trains 12 steps" in add_settings(request, "megatron-lm", Path("c.yaml"))[1]
    longer = CaptureRequest("torchrun", "megatron-lm", 10, 16, (0,), command=(*LM.split(), "--train-iters", "16"))
    assert "it trains" not in add_settings(longer, "megatron-lm", Path("c.yaml"))[1]


def test_a_run_with_pytorchs_profiler_is_left_as_it_is() -> None:
    assert added(f"{BRIDGE} profiling.use_pytorch_profiler=true") == []
    assert added(f"{LM} --use-pytorch-profiler") == []
    assert added(f"{BRIDGE} profiling.use_pytorch_profiler=false") != []


def test_four_clean_steps_take_six_profiled_ones() -> None:
    assert count_steps("4") == (10, 16)
    for text in ("0", "x", "-4", "99999", "4.5", ""):
        with pytest.raises(UsageError, match="--steps"):
            count_steps(text)


@pytest.mark.parametrize(
    ("command", "right"),
    [
        ("torchrun -m pkg.train --x", "torchrun --no-python three-walls attach -- python -m pkg.train --x"),
        ("srun -n 2 python train.py", "srun -n 2 three-walls attach -- python train.py"),
        ("srun ./train.sh", "srun ... three-walls attach -- python train.py"),
    ],
)
def test_a_launcher_belongs_outside(command: str, right: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_command(command.split())
    assert right in str(caught.value)


def test_a_program_is_no_launcher() -> None:
    check_command(LM.split())


@pytest.mark.parametrize(
    ("environment", "rank", "world", "name"),
    [
        ({}, 0, 1, "run"),
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "12"}, 3, 8, "slurm-12.0"),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "2"}, 5, 6, "slurm-1.2"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1, 2, "run"),
        ({"PMI_RANK": "1"}, 1, None, "run"),
        ({"RANK": "x", "PMI_RANK": "4", "TORCHELASTIC_RUN_ID": "a/b"}, 4, None, "run-a_b"),
    ],
)
def test_the_launcher_gives_rank_and_name(environment: dict[str, str], rank: int, world: int | None, name: str) -> None:
    job = read_job(environment)
    assert (job.rank, job.world, job.name) == (rank, world, name)


def test_launches_without_a_name_differ_by_their_address() -> None:
    address = {"RANK": "0", "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
    names = {read_job(address | {"MASTER_PORT": port}).name for port in ("29500", "29501")}
    assert len(names) == 2
    assert all("host" not in name for name in names)


def test_the_recorded_command_line_is_read_as_the_programs_own() -> None:
    starter = ["python", "-I", "-S", "/x/three_walls/capture/attach/start_program.py", "/tmp/t", "under-profiler"]
    assert find_program([*starter, *LM.split()]) == find_program(LM.split())
    assert find_program([*starter, "python", "-m", "pkg.train", "--x"]).script == "pkg.train"


def test_each_launch_has_a_directory_and_each_rank_its_log(tmp_path: Path) -> None:
    for rank in ("0", "1", "0"):
        job = read_job({"RANK": rank, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "../a b"})
        _, log = make_directory(tmp_path, job)
        os.close(log)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.log"))
    assert found == ["run-.._a_b-2/rank0.log", "run-.._a_b/rank0.log", "run-.._a_b/rank1.log"]


@pytest.mark.parametrize(
    ("environment", "gpu"),
    [
        ({}, "0"),
        ({"LOCAL_RANK": "3"}, "3"),
        ({"SLURM_LOCALID": "2", "CUDA_VISIBLE_DEVICES": ""}, "2"),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4, 5"}, "5"),
        ({"SLURM_LOCALID": "3", "CUDA_VISIBLE_DEVICES": "6"}, "6"),  # each rank is shown its own alone
        ({"LOCAL_RANK": "2", "CUDA_VISIBLE_DEVICES": "4,5"}, None),
        ({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "GPU-7795749e,GPU-1"}, None),
        ({"LOCAL_RANK": "x"}, "0"),
    ],
)
def test_the_gpu_of_a_rank_by_its_number_on_the_host(environment: dict[str, str], gpu: str | None) -> None:
    assert find_gpu(environment) == gpu
