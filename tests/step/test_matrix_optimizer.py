"""The GEMMs of an optimizer that works on matrices, as Muon does, are told from those of layers by their place."""

from __future__ import annotations

from pathlib import Path

from trace_builder import ADAM, GEMM, POINTWISE, TraceBuilder

from three_walls import analyze

FLASH = "flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>"
NORM_OF_GRADIENTS = "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>>"
STEPS = (1, 1001, 2001, 3001)


def budget(tmp_path: Path, *kernels: tuple[str, int]) -> dict[str, int]:
    """Of steps that run ``kernels``, each for so long, one after the other."""
    builder = TraceBuilder()
    for at in STEPS:
        for name, duration_ns in kernels:
            builder.kernel(name, at, at + duration_ns)
            at += duration_ns
    return dict(analyze(builder.write(tmp_path / "trace.sqlite")).ranks[0].budget)


def test_gemms_between_two_kernels_of_the_optimizer_are_the_optimizers(tmp_path: Path) -> None:
    layer = (GEMM, 100), (FLASH, 50), (GEMM, 100)
    muon = (NORM_OF_GRADIENTS, 10), (POINTWISE, 20), (GEMM, 200), (POINTWISE, 20), (ADAM, 50)
    owned = budget(tmp_path, *layer, *muon)
    assert (owned["gemm"], owned["optimizer"]) == (200, 10 + 20 + 200 + 20 + 50)
    assert "elementwise" not in owned


def test_with_adam_pointwise_kernels_between_them_stay_pointwise(tmp_path: Path) -> None:
    adam = (NORM_OF_GRADIENTS, 10), (POINTWISE, 20), (ADAM, 50)
    owned = budget(tmp_path, (GEMM, 100), (FLASH, 50), *adam)
    assert (owned["elementwise"], owned["optimizer"]) == (20, 10 + 50)


def test_a_layer_between_them_keeps_its_gemms(tmp_path: Path) -> None:
    owned = budget(tmp_path, (NORM_OF_GRADIENTS, 10), (GEMM, 100), (FLASH, 50), (GEMM, 100), (ADAM, 50))
    assert (owned["gemm"], owned["optimizer"]) == (200, 10 + 50)


def test_the_gemms_after_an_update_are_the_next_steps(tmp_path: Path) -> None:
    owned = budget(tmp_path, (GEMM, 100), (NORM_OF_GRADIENTS, 10), (ADAM, 50))
    assert (owned["gemm"], owned["optimizer"]) == (100, 10 + 50)
