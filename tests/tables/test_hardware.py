"""GPU models are distinguished by the driver's name; what is not known has no row."""

from pathlib import Path

import pytest

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.tables.hardware import BF16, FP8, NVFP4, HardwareTable, find_gpu, gpu_models
from three_walls.tables.shareable import is_safe_text


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H800", "H800"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A800-SXM4-80GB", "A800"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("NVIDIA VR200", "VR200"),
    ],
)
def test_a_model_is_found_by_its_name(name: str, family: str) -> None:
    model = find_gpu(name)
    assert model is not None
    assert model.family == family
    assert is_safe_text(name), "a trace would not state it"


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "NVIDIA H20-3e",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A800 40GB Active",
        "NVIDIA L40",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "GH100",
    ],
)
def test_a_name_that_is_like_a_models_is_not_the_model(name: str | None) -> None:
    assert find_gpu(name) is None


def test_the_compute_capability_must_agree_and_alone_names_nothing() -> None:
    assert find_gpu("NVIDIA H200", "sm_90") is not None
    assert find_gpu("NVIDIA H200", "9.0") is not None
    assert find_gpu("NVIDIA H200", "sm_100") is None
    assert find_gpu(None, "sm_90") is None


BOARDS = (
    *("H100-PCIe", "H100-NVL", "H200-NVL", "A100-PCIe", "A100-PCIe-40GB", "L40S", "RTX-PRO-6000"),
    *("GH200", "GH200-144GB"),
)
"""Models of which NVLink joins as many as their server decides, or none."""
WITHOUT_PEAKS = ("VR200", "RTX-PRO-6000")


def test_numbers_are_per_gpu_and_plausible() -> None:
    for model in gpu_models():
        assert 40e9 <= model.memory_bytes <= 300e9
        assert 8e11 <= model.memory_bytes_per_s <= 22e12
        assert (model.bf16_dense_flops is None) == (model.family in WITHOUT_PEAKS)
        assert model.bf16_dense_flops is None or 1.4e14 <= model.bf16_dense_flops <= 3e15
        assert model.source
        assert model.host_link_bytes_per_s is None or 30e9 <= model.host_link_bytes_per_s <= 450e9
        assert model.nic_bytes_per_s_one_way is None or 25e9 <= model.nic_bytes_per_s_one_way <= 100e9


def test_boards_with_bridges_have_no_known_nvlink_domain_and_the_others_have_one() -> None:
    for model in gpu_models():
        if model.family in BOARDS:
            assert model.nvlink_domain_gpus is None
            assert model.nvlink_bytes_per_s_one_way is None
        else:
            assert model.nvlink_domain_gpus == (72 if model.family.startswith(("GB", "VR")) else 8)
            assert model.nvlink_bytes_per_s == 2 * (model.nvlink_bytes_per_s_one_way or 0)


def test_fp8_is_twice_bf16_where_there_is_any_and_only_blackwell_has_nvfp4() -> None:
    for model in gpu_models():
        if model.bf16_dense_flops is None:
            assert model.peak_flops(FP8) is model.peak_flops(NVFP4) is None
            continue
        if model.sm == "sm_80":
            assert model.peak_flops(FP8) is None
        else:
            assert model.peak_flops(FP8) == pytest.approx(2 * model.bf16_dense_flops, rel=0.02)
        assert (model.peak_flops(NVFP4) is not None) == (model.sm in ("sm_100", "sm_103"))
        assert model.peak_flops(BF16) == model.bf16_dense_flops


def test_a_row_without_a_needed_number_or_with_an_unknown_one_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "hardware.yaml"
    table.write_text("gpus:\n  X1:\n    name_pattern: X1\n    sm: sm_90\n    source: none\n    hbm_bytes: 1\n")
    with pytest.raises(RuleBaseError) as refused:
        load_table(table, HardwareTable)
    for message in ("hbm_bytes", "key memory_bytes is missing", "key memory_bytes_per_s is missing"):
        assert message in str(refused.value)
