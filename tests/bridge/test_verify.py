"""``three-walls verify`` judges a file of overrides and explains per line what is wrong."""

from __future__ import annotations

import json
import lzma
import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.paths import REPOSITORY
from three_walls.bridge.real_bridge.verify_overrides import NoBridgeError, ask_bridge
from three_walls.cli.main import cli
from three_walls.cli.verify import read_command, read_overrides, read_run_config
from three_walls.lib import limits
from three_walls.lib.errors import InputError, UsageError
from three_walls.tables.bridge_releases import check_release

RUN_CONFIG = """
model:
  _target_: megatron.bridge.models.qwen.qwen_provider.Qwen3MoEModelProvider
  recompute_granularity: full
  cuda_graph_scope: []
  overlap_moe_expert_parallel_comm: false
  params_dtype: {_call_: false, _target_: torch.bfloat16}
comm_overlap: null
mixed_precision: bf16_mixed
dist: {lazy_init: false}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run_config.yaml").write_text(RUN_CONFIG)
    return tmp_path


def run(folder: Path, overrides: str, *options: str) -> tuple[int, str]:
    (folder / "overrides.txt").write_text(overrides)
    arguments = ["verify", str(folder / "overrides.txt"), "--config", str(folder / "run_config.yaml"), *options]
    done = CliRunner().invoke(cli, arguments)
    return done.exit_code, done.output


def test_overrides_that_fit_are_valid_and_a_missing_bridge_is_reported(folder: Path) -> None:
    code, output = run(folder, "# a comment\n'model.recompute_modules=[moe_act]'\nexport X=1\n--some-flag 3\n")
    assert code == 0
    assert output.splitlines()[:2] == [
        "Overrides for run_config.yaml, Megatron-Bridge 0.3.1:",
        "ok      model.recompute_modules=[moe_act]",
    ]
    assert output.splitlines()[-1].startswith("Megatron-Bridge itself was not run: ")


def test_a_misspelt_key_a_wrong_word_and_a_broken_constraint_each_fail(folder: Path) -> None:
    assert run(folder, "model.recompute_granularty=null\n")[0] == 1
    assert "some is not one of full, selective" in run(folder, "model.recompute_granularity=some\n")[1]
    code, output = run(folder, "model.overlap_moe_expert_parallel_comm=true\n")
    assert (code, "FAILS   ep_overlap_excludes_full_recompute" in output) == (1, True)


def test_the_release_decides_which_keys_exist(folder: Path) -> None:
    line = "model.moe_permute_fusion_into_hybridep=true\n"
    assert run(folder, line)[0] == 1
    assert run(folder, line, "--bridge-version", "0.4.2")[0] == 0


def test_a_run_config_is_read_with_its_objects(folder: Path) -> None:
    config, release = read_run_config(folder / "run_config.yaml")
    assert config.values["comm_overlap"] is None
    assert config.values["bf16"] is True
    assert config.values["model.params_dtype"] == "torch.bfloat16"
    assert release == "0.3.1"


def test_a_config_that_shows_no_release_is_judged_by_the_newest(folder: Path) -> None:
    (folder / "run_config.yaml").write_text(RUN_CONFIG.replace("dist: {lazy_init: false}\n", ""))
    assert read_run_config(folder / "run_config.yaml")[1] is None
    assert run(folder, "model.moe_permute_fusion=true\n")[1].startswith(
        "Overrides for run_config.yaml, Megatron-Bridge 0.6.2 (the newest known release):"
    )


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("0.5.9", "no data of 0.5.9 is known; the nearest is 0.5.1"),
        ("0.6.3", "no data of 0.6.3 is known; the nearest is 0.6.2"),
        ("0.7.0", r"no data of 0.7.0 is known; the nearest is main \(a snapshot of \d{4}-\d\d-\d\d\)"),
        ("newest", "found 'newest'"),
    ],
)
def test_a_release_of_which_nothing_is_known_is_refused(version: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_release(version)


def test_a_snapshot_is_named_with_its_date(folder: Path) -> None:
    _, output = run(folder, "model.moe_permute_fusion=true\n", "--bridge-version", "main")
    assert re.match(r"Overrides for run_config.yaml, Megatron-Bridge main \(a snapshot of [\d-]{10}\):", output)


def test_patch_releases_that_differ_are_told_apart(folder: Path) -> None:
    for version, code in (("0.4", 0), ("0.4.2", 0), ("0.4.1", 1), ("0.4.0", 1)):
        assert run(folder, "model.moe_permute_fusion_into_hybridep=true\n", "--bridge-version", version)[0] == code
        assert run(folder, "model.moe_hybridep_num_sms=null\n", "--bridge-version", version)[0] == code


def test_a_config_that_states_too_little_to_compare_is_a_warning(folder: Path) -> None:
    (folder / "run_config.yaml").write_text("model: {num_layers: 2}\n")
    code, output = run(folder, "++model.moe_permute_fusion=true\n")
    assert code == 0
    warnings = [line for line in output.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert re.match(r"WARNING only \d+ of \d\d\d constraints could be compared, because few settings", warnings[0])
    whole = REPOSITORY / "tests" / "bridge_runs" / "0.6.2" / "run_config.yaml.xz"
    (folder / "run_config.yaml").write_bytes(lzma.decompress(whole.read_bytes()))
    assert "WARNING" not in run(folder, "train.micro_batch_size=2\n")[1]


@pytest.mark.parametrize("options", [[], ["--recipe", "x", "--config", "y"]])
def test_exactly_one_of_recipe_and_config_is_expected(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "overrides.txt"
    path.write_text("model.bf16=true\n")
    found = "both" if options else "neither"
    with pytest.raises(
        UsageError, match=f"found {found}: type three-walls verify .*overrides.txt --config run_config.yaml"
    ):
        CliRunner().invoke(cli, ["verify", str(path), *options], catch_exceptions=False, standalone_mode=False)


COMMAND = (
    "NVTE_CPU_OFFLOAD_V1=1 torchrun --nnodes=2 --nproc-per-node 8 run_recipe.py --recipe qwen3_30b_a3b_pretrain_config "
    "-tp 2 model.sequence_parallel=true '++comm_overlap.overlap_param_gather=true' ~profiling"
)


def test_a_command_is_read_with_its_variables_launcher_options_and_overrides(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text("#!/bin/bash\nexport A=1\n" + COMMAND.replace(" -tp", " \\\n  -tp") + "\n")
    for written, environment in ((read_command(shlex.split(COMMAND)), {}), (read_overrides(script), {"A": "1"})):
        assert written.overrides == (
            "model.sequence_parallel=true",
            "++comm_overlap.overlap_param_gather=true",
            "~profiling",
        )
        assert written.environment == {**environment, "NVTE_CPU_OFFLOAD_V1": "1"}
        assert (written.recipe, written.world_size) == ("qwen3_30b_a3b_pretrain_config", 16)
        assert written.settings.values["tensor_model_parallel_size"].value == 2


def test_a_command_is_verified_by_itself() -> None:
    words = [*shlex.split(COMMAND), "model.recompute_granularty=null"]
    for arguments, code in ((words[:-2], 0), (words, 1)):
        done = CliRunner().invoke(cli, ["verify", "--bridge-version", "0.4.2", "--", *arguments])
        assert done.exit_code == code, done.output
        assert done.output.startswith("Overrides for qwen3_30b_a3b_pretrain_config, Megatron-Bridge 0.4.2:")


def test_a_whole_configuration_is_verified_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "run_config.yaml"
    whole = lzma.decompress(
        (REPOSITORY / "tests" / "bridge_runs" / "0.6.2" / "run_config.yaml.xz").read_bytes()
    ).decode()
    for text, code in ((whole, 0), (whole.replace("recompute_granularity: null", "recompute_granularity: some"), 1)):
        path.write_text(text)
        done = CliRunner().invoke(cli, ["verify", str(path), "--gpu", "NVIDIA H200", "--world-size", "4"])
        assert done.exit_code == code, done.output


def test_settings_in_another_yaml_file_are_overrides(folder: Path) -> None:
    (folder / "edits.yaml").write_text("model: {recompute_granularity: null, moe_ffn: 3}\ntrain: {manual_gc: true}\n")
    arguments = ["verify", str(folder / "edits.yaml"), "--config", str(folder / "run_config.yaml")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert [line.split(":")[0] for line in lines[1:4]] == [
        "ok      model.recompute_granularity=null",
        "FAILS   model.moe_ffn=3",
        "ok      train.manual_gc=true",
    ]


def test_keys_of_no_known_release_are_named(folder: Path) -> None:
    (folder / "run_config.yaml").write_text(RUN_CONFIG.replace("dist: {", "env_vars: {X: 1}\ndist: {lazy_innit: 1, "))
    warnings = [line for line in run(folder, "model.bf16=true\n")[1].splitlines() if "no known release" in line]
    assert [warning.partition(":")[0] for warning in warnings] == [
        "WARNING no known release of Megatron-Bridge has dist.lazy_innit"
    ]


def test_the_machine_is_judged(folder: Path) -> None:
    lines = "mixed_precision=bf16_with_nvfp4_mixed\n"
    for version, code in (("2.8", 0), ("2.6.0", 1)):
        assert run(folder, lines, "--transformer-engine", version, "--bridge-version", "0.6.2")[0] == code
    with pytest.raises(UsageError, match=r"--transformer-engine: expected a release like 2.14, found 'new'"):
        CliRunner().invoke(
            cli, ["verify", "x", "--transformer-engine", "new"], catch_exceptions=False, standalone_mode=False
        )


def test_a_report_is_no_file_of_overrides(folder: Path) -> None:
    (folder / "report.json").write_text('{"schema_version": 1}')
    with pytest.raises(InputError, match=r"report\.json: expected overrides, one per line .* found JSON"):
        read_overrides(folder / "report.json")


def test_json_holds_what_the_lines_say(folder: Path) -> None:
    code, output = run(folder, "model.overlap_moe_expert_parallel_comm=true\nmodel.x=1\n", "--json")
    document = json.loads(output)
    assert (code, document["valid"], document["accepted"], document["bridge"]) == (1, False, False, None)
    assert [(row["state"], row["fails"]) for row in document["overrides"]] == [("ok", None), ("fails", "refused")]
    assert "ep_overlap_excludes_full_recompute" in [row["name"] for row in document["broken"]]
    assert document["warnings"][0].startswith("only ")


_LINES = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)), "model: {x: *a39}"]
_BOMB = "\n".join(_LINES)


@pytest.mark.parametrize("text", ["just text", "a: [", "train: {}", "[" * 100_000, _BOMB])
def test_what_is_no_run_config_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError, match="expected"):
        read_run_config(tmp_path / "x.yaml")


def test_a_line_too_long_to_be_read_in_time_is_refused_and_a_long_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "o.txt"
    path.write_text(f"model.bf16=true\nmodel.x={'a' * limits.LONGEST_OVERRIDES_LINE}\n")
    with pytest.raises(InputError, match=r"o\.txt:2: expected a line of at most 65,536 characters, found 65,544"):
        read_overrides(path)
    path.write_text(f"model.x={'a' * (limits.LONGEST_OVERRIDES_LINE - 8)}\n")
    assert len(read_overrides(path).overrides) == 1


def test_more_overrides_than_a_run_can_have_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "o.txt"
    path.write_text("model.x=1\n" * (limits.MOST_OVERRIDES + 1))
    with pytest.raises(InputError, match=r"o\.txt: expected at most 1,000 overrides, found 1,001"):
        read_overrides(path)
    path.write_text("model.x=1\n" * limits.MOST_OVERRIDES)
    assert len(read_overrides(path).overrides) == limits.MOST_OVERRIDES


def test_an_open_quote_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "o.txt").write_text("model.a=1\n'model.b=[x\n")
    with pytest.raises(InputError, match=r"o\.txt:2: expected words quoted for a shell"):
        read_overrides(tmp_path / "o.txt")


def test_an_interpreter_without_bridge_is_a_reason_not_a_crash() -> None:
    with pytest.raises(NoBridgeError, match="No module named"):
        ask_bridge(sys.executable, {"cases": []})


def test_the_answer_of_bridge_is_printed_per_override(folder: Path) -> None:
    answer = {
        "bridge": "0.3.1",
        "results": [
            {
                "applied": False,
                "validated": False,
                "message": "OverridesError: x",
                "failing": {"train.manual_gc=true": "no"},
            }
        ],
    }
    fake = folder / "python"
    fake.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{json.dumps(answer)}'\n")
    fake.chmod(0o755)
    code, output = run(folder, "train.manual_gc=true\ntrain.manual_gc_interval=10\n", "--python", str(fake))
    assert code == 1
    assert output.splitlines()[-4:] == [
        "Megatron-Bridge 0.3.1 itself:",
        "FAILS     train.manual_gc=true: no",
        "ok alone  train.manual_gc_interval=10",
        "FAILS     OverridesError: x",
    ]
