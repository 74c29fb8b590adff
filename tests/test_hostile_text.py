"""Files of anyone's hand: each is refused in a line of its own, or read as far as it makes sense; none hangs."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from three_walls.advice.format.load_rules import load_rules
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib import limits
from three_walls.lib.errors import InputError, RuleBaseError, UsageError
from three_walls.log.read_lines import read_value
from three_walls.log.read_log import read_logs
from three_walls.megatron.settings.log_settings import read_argument_block, read_log_settings
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line, read_user_settings
from three_walls.megatron.settings.saved_config import read_dump
from three_walls.memory_snapshot.summarize_snapshot import read_memory_snapshot
from three_walls.step.operators import read_operator_text

DIGITS = [400, 5_000]


def complaints_about_rule(folder: Path, text: str) -> list[str]:
    (folder / "memory").mkdir(parents=True)
    (folder / "sources.yaml").write_text("{}\n")
    (folder / "memory" / "a-rule.yaml").write_text(text)
    with pytest.raises(RuleBaseError) as caught:
        load_rules(folder, definitions=DEFINITIONS)
    return [line for line in str(caught.value).splitlines() if "a-rule.yaml" in line]


@pytest.mark.parametrize("depth", [50, 900, 200_000])
def test_a_rule_of_many_levels_is_refused_where_they_begin(tmp_path: Path, depth: int) -> None:
    assert complaints_about_rule(tmp_path, "[" * depth)[0].endswith("not valid YAML: more than 40 levels")


def test_a_rule_file_that_is_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "rules" / "memory"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.yaml")
    (folder / "zero.yaml").symlink_to("/dev/zero")
    with pytest.raises(RuleBaseError) as caught:
        load_rules(tmp_path / "rules", definitions=DEFINITIONS)
    assert str(caught.value).count("expected a file, found a pipe or a device") == 2


def test_a_pipe_in_place_of_the_directory_of_rules_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RuleBaseError, match="expected a directory of rules"):
        load_rules(tmp_path / "pipe", definitions=DEFINITIONS)


def test_a_rule_file_of_many_megabytes_is_refused(tmp_path: Path) -> None:
    assert "at most 4 MiB" in complaints_about_rule(tmp_path, "# " + "x" * 5_000_000)[0]


@pytest.mark.parametrize("text", ['"\\e[31mkey": 1', 'title: "\\e]0;owned\\a"', 'title: "a\\u202eb"'])
def test_no_escape_sequence_of_a_rule_reaches_the_terminal(tmp_path: Path, text: str) -> None:
    complaints = complaints_about_rule(tmp_path, f"{text}\n")
    assert any("control character" in complaint for complaint in complaints)
    assert all(complaint.isprintable() for complaint in complaints)


def test_text_of_any_language_is_no_control_character(tmp_path: Path) -> None:
    complaints = complaints_about_rule(tmp_path, "title: 'Größe\N{NO-BREAK SPACE}– 大'\n")
    assert not any("control character" in complaint for complaint in complaints)


@pytest.mark.parametrize("number", ["9" * 19, "9" * 400, "9" * 5_000, "9" * 400 + ".5"])
def test_a_number_that_64_bits_do_not_hold_is_refused_in_a_rule(tmp_path: Path, number: str) -> None:
    assert any("the number is too large" in line for line in complaints_about_rule(tmp_path, f"title: {number}\n"))


def test_a_file_of_many_problems_lists_the_first_hundred(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (tmp_path / "sources.yaml").write_text("{}\n")
    (folder / "a-rule.yaml").write_text("".join(f"- !tag {number}\n" for number in range(10_000)))
    with pytest.raises(RuleBaseError) as caught:
        load_rules(tmp_path, definitions=DEFINITIONS)
    assert len(str(caught.value).splitlines()) == 101
    assert str(caught.value).endswith("more")


def test_a_word_of_any_length_is_quoted_in_part(tmp_path: Path) -> None:
    assert max(map(len, complaints_about_rule(tmp_path, "k" * 100_000 + ": 1\n"))) < 1_000


@pytest.mark.parametrize("digits", DIGITS)
def test_a_huge_number_is_withheld_wherever_a_setting_is_read(digits: int) -> None:
    number = "9" * digits
    blocks = [
        read_argument_block([("moe_aux_loss_coeff", number), ("num_layers", number), ("world_size", number)]),
        read_command_line(["run_recipe.py", f"model.num_layers={number}", f"model.moe_aux_loss_coeff={number}"]),
        read_dump(f"model:\n  num_layers: {number}\n  moe_aux_loss_coeff: {number}\n", "config file", "config"),
    ]
    for settings in blocks:
        config = merge_sources([settings])
        assert config.size("num_layers") is None
        assert config.get("moe_aux_loss_coeff") is None
        assert all(number not in warning for warning in settings.warnings)


@pytest.mark.parametrize("digits", DIGITS)
def test_a_huge_number_that_a_user_states_is_refused(digits: int) -> None:
    with pytest.raises(UsageError, match="num_layers"):
        read_user_settings([f"num_layers={'9' * digits}"])


def test_a_number_of_18_digits_is_read() -> None:
    assert merge_sources([read_user_settings(["num_layers=999999999999999999"])]).size("num_layers") == 10**18 - 1


@pytest.mark.parametrize(("text", "unit"), [("9" * 400, "count"), ("1e999", "number"), ("9" * 400 + " GiB", "size")])
def test_a_huge_number_in_a_line_of_a_log_is_no_value(text: str, unit: str) -> None:
    assert read_value(text, unit) is None
    assert read_value("12 GiB" if unit == "size" else "12", unit) is not None


def test_a_log_with_huge_numbers_is_read_without_them(tmp_path: Path) -> None:
    number = "9" * 5_000
    log = tmp_path / "train.log"
    log.write_text(
        "------------------------ arguments ------------------------\n"
        f"  expert_model_parallel_size ...................... {number}\n"
        "  num_layers ...................................... 4\n"
        "-------------------- end of arguments ---------------------\n"
        f"using world size: {number}, data-parallel size: 1, context-parallel size: 1, "
        "tensor-model-parallel size: 1, pipeline-model-parallel size: 1\n"
    )
    config = merge_sources(read_log_settings(read_logs([log])))
    assert config.size("num_layers") == 4
    assert config.size("expert_model_parallel_size") is None


def snapshot(**segment: Any) -> dict[str, Any]:
    return {"segments": [{"device": 0, "address": 1, "total_size": 1, "blocks": [], **segment}], "device_traces": [[]]}


@pytest.mark.parametrize("size", [10**400, 2**63, -(2**70)])
def test_a_size_that_no_memory_has_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(snapshot(total_size=size)))
    with pytest.raises(InputError, match="out of range"):
        read_memory_snapshot(path)


def test_an_address_may_have_64_bits(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(address=2**64 - 4096)))
    assert read_memory_snapshot(path).reserved_bytes == 1


def test_texts_of_stacks_are_cut(tmp_path: Path) -> None:
    frames = [{"name": "forward" + "x" * 10_000, "filename": "/a/" + "y" * 10_000}]
    blocks = [{"size": 1, "state": "active_allocated", "frames": frames}]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(blocks=blocks)))
    (site,) = read_memory_snapshot(path).sites
    assert max(map(len, site.stack)) <= 2 * limits.LONGEST_FRAME_TEXT + 1


def test_nested_brackets_in_the_sizes_of_a_range_are_no_sizes() -> None:
    assert read_operator_text(f"aten::mm, sizes = [{'[' * 5_000}]") == ("aten::mm", None, None)
    assert read_operator_text("aten::mm, seq = 3, sizes = [[4, 2], []]") == ("aten::mm", ((4, 2), ()), 3)


@pytest.mark.parametrize("shape", [[2**40, 2**40], [1] * 100])
def test_a_shape_that_no_tensor_has_is_not_read(shape: list[int]) -> None:
    assert read_operator_text(f"aten::mm, sizes = [{json.dumps(shape)}]") == ("aten::mm", None, None)


@pytest.mark.slow
def test_a_value_of_many_levels_is_one_setting() -> None:
    words = ["python", "run_recipe.py", "model.num_layers=4", "a=" + "{a:" * 100_000 + "}" * 100_000]
    assert merge_sources([read_command_line(words)]).size("num_layers") == 4
