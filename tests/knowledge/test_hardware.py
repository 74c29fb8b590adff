"""GPU models are told apart by the driver's name; what is not known has no row."""

import pytest

from three_walls.knowledge.hardware import find_gpu, gpu_models


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H800", "H800"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB300", "GB300"),
    ],
)
def test_a_model_is_found_by_its_name(name: str, family: str) -> None:
    model = find_gpu(name)
    assert model is not None
    assert model.family == family


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "NVIDIA H20",
        "NVIDIA GH200 480GB",
        "NVIDIA H100 PCIe",
        "NVIDIA H200 NVL",
        "NVIDIA A100-PCIE-40GB",
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


def test_numbers_are_per_gpu_and_plausible() -> None:
    for model in gpu_models():
        assert 40e9 <= model.memory_bytes <= 300e9
        assert model.nvlink_domain_gpus == (72 if model.family.startswith("GB") else 8)
        assert model.nvlink_bytes_per_s == 2 * model.nvlink_bytes_per_s_one_way
        assert 3e14 <= model.bf16_dense_flops <= 3e15
        assert model.source
        assert model.nic_bytes_per_s_one_way is None or 25e9 <= model.nic_bytes_per_s_one_way <= 100e9


def test_the_network_of_a_model_is_known_or_missing_never_zero() -> None:
    known = {model.family: model.nic_bytes_per_s_one_way for model in gpu_models()}
    assert known["H100"] == 50_000_000_000
    assert known["H800"] is None
