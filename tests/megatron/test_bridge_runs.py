"""What real Megatron-Bridge runs wrote of their settings, one run per release.

``tests/bridge_runs/<release>`` holds the log and the saved configuration of a cut-down Qwen3 MoE (the library's recipe,
local layers, no Transformer Engine) on one H200 (0.4.2, 0.5.1) or two (0.3.1, 0.6.2: expert parallelism of 2).
"""

from __future__ import annotations

import lzma
from dataclasses import replace

import pytest

from tests.paths import BRIDGE_RUNS
from three_walls.log.read_log import read_logs
from three_walls.log.training_log import LogLayout
from three_walls.megatron.model_shape import padded_vocabulary
from three_walls.megatron.settings.log_settings import read_log_settings
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.megatron.settings.saved_config import read_dump
from three_walls.megatron.settings.setting_sources import SourceSettings

RUNS = BRIDGE_RUNS
RELEASES = {"0.3.1": "0.3", "0.4.2": "0.4", "0.5.1": "0.5", "0.6.2": "0.6"}

of_every_release = pytest.mark.parametrize("run", list(RELEASES))


def saved(run: str, name: str = "run_config.yaml") -> SourceSettings:
    text = lzma.decompress((RUNS / run / f"{name}.xz").read_bytes()).decode()
    return read_dump(text, "config file", name)


def logged(run: str) -> RunConfig:
    log = replace(read_logs([RUNS / run / "train.log.xz"]), argument_block=(), config_dump=None)
    layout = LogLayout(padded_vocab_size=log.layout.padded_vocab_size)
    return merge_sources(read_log_settings(replace(log, layout=layout)))


@of_every_release
def test_a_saved_configuration_shows_its_release_without_warnings(run: str) -> None:
    found = saved(run)
    assert (found.bridge_version, found.is_settled, found.warnings) == (RELEASES[run], True, ())


@of_every_release
def test_a_log_shows_its_release_by_the_summary(run: str) -> None:
    found = logged(run)
    assert (found.bridge_version, found.dialect) == (RELEASES[run], "bridge")
    assert found.values["cuda_graph_impl"].source == "Megatron Core default"  # left out, so it is none


@of_every_release
def test_the_vocabulary_is_known_before_the_model_has_it(run: str) -> None:
    """Saved before the tokenizer is built, ``model.vocab_size`` is null; the tokenizer's size is there."""
    found = saved(run)
    assert padded_vocabulary(merge_sources([found])).value == 32_000
    assert padded_vocabulary(logged(run)).value == 32_000


@pytest.mark.parametrize("run", ["0.3.1", "0.6.2"])
def test_a_checkpoints_copy_agrees_with_the_one_saved_first(run: str) -> None:
    first, later = saved(run), saved(run, "checkpoint_run_config.yaml")
    assert later.bridge_version == first.bridge_version
    differing = {key for key in first.values if first.values[key].value != later.values[key].value}
    assert differing <= {"ddp_bucket_size"}  # chosen when gradients are set up


@of_every_release
def test_log_and_saved_configuration_agree(run: str) -> None:
    in_log = logged(run).values
    in_file = saved(run).values
    differing = {
        key: (in_log[key].value, in_file[key].value)
        for key in in_log.keys() & in_file.keys()
        if in_log[key].value != in_file[key].value
    }
    assert differing.keys() <= {"ddp_bucket_size", "padded_vocab_size"}, differing
