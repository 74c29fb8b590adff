"""The tables of operators and of number formats, and what their loaders refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.tables.kernel_names import PrecisionTable, precision_of_kernel
from three_walls.tables.nvtx_ranges import TorchOperators, torch_operators


def test_the_shipped_table_loads_and_knows_the_plain_product() -> None:
    assert torch_operators().gemms["aten::mm"] == (0, 1)


def test_every_problem_of_a_table_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "operators.yaml"
    path.write_text(
        "gemms: {one: [0]}\nlinear_layers: {f: {input: x, weight: 0, source: s}}\n"
        "backward: '('\nreplays: []\nunfused: [{work: lunch, inside: a, reason: b}]\n"
    )
    with pytest.raises(RuleBaseError) as caught:
        load_table(path, TorchOperators)
    message = str(caught.value)
    for part in (
        "operators.yaml:1",
        "element 2 is missing",
        "operators.yaml:2",
        "operators.yaml:3",
        "operators.yaml:5",
        "lunch",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "bf16"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "bf16"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x32x8_stage3", "fp32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(T1::Params)", "fp32"),
        ("nvjet_sm90_tss_256x128_64x4_1x2_h_bz_coopA_NNT", "bf16"),
        ("nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "fp16"),
        ("nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT", "fp8"),
        ("nvjet_sm90_qrtst_128x128_128x6_2x1_v_bz_coopA_algo2_TNT", "fp8"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_warpgroupsize2x1x1", "tf32"),
        ("something_else", "precision of the config"),
    ],
)
def test_a_kernels_name_gives_its_format_and_else_the_config_does(kernel: str, expected: str) -> None:
    assert precision_of_kernel(kernel, "precision of the config") == expected


def test_an_unknown_format_in_the_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "precisions.yaml"
    path.write_text("precisions: [{pattern: a, precision: fp7, reason: b}]\n")
    with pytest.raises(RuleBaseError, match="fp7"):
        load_table(path, PrecisionTable)
