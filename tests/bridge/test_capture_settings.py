"""The settings with which attach and capture record a run, on real recipes: ``make test-bridge``."""

from __future__ import annotations

from pathlib import Path

from tests.bridge.releases import BRIDGES, EVERY_RELEASE, recipe_in
from three_walls.capture.attach.attach_settings import add_settings
from three_walls.capture.capture_commands import CaptureRequest

SECTIONS = {
    "the recipe's": [],
    "none": ["cfg.profiling = None"],
    "with a setting": [
        "import megatron.bridge.training.config as config",
        "cfg.profiling = config.ProfilingConfig(record_memory_history=True)",
    ],
}
"""Lines that give a recipe a profiling section, or none."""


@EVERY_RELEASE
def test_the_settings_take_effect_whether_or_not_the_recipe_has_a_profiling_section(release: str) -> None:
    request = CaptureRequest("torchrun", "bridge", 10, 16, (0, 3), command=("run_recipe.py", "--recipe", "x"))
    overrides = list(add_settings(request, "bridge", Path("/with a space/run_config.yaml"))[0])
    wanted = {
        "profiling.use_nsys_profiler": True,
        "profiling.profile_step_start": 10,
        "profiling.profile_step_end": 16,
        "profiling.profile_ranks": [0, 3],
        "profiling.record_shapes": True,
        "logger.log_interval": 1,
        "logger.save_config_filepath": "/with a space/run_config.yaml",
    }
    kept = "profiling.record_memory_history"
    cases = [
        {
            "recipe": recipe_in(release, "qwen3_30b_a3b_pretrain_config"),
            "world_size": 8,
            "overrides": overrides,
            "prepare": lines,
            "show": [*wanted, kept],
        }
        for lines in SECTIONS.values()
    ]
    for name, result in zip(SECTIONS, BRIDGES[release].ask(cases), strict=True):
        assert (result["applied"], result["validated"]) == (True, True), (name, result["message"])
        assert result["values"] == wanted | {kept: name == "with a setting"}, name
