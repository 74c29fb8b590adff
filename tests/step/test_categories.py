"""Kernel names of real traces and of the libraries' sources, with the category each must get."""

from __future__ import annotations

import pytest

from three_walls.tables.kernel_names import load_api_patterns, match_kernel, union_of

NAMES = {
    "gemm": [
        "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x32x8_stage3_warpsize2x2x1_ffma_aligna4",
        "Kernel2 void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(T1::Params)",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn",
        "cutlass3x_sm100_bstensorop_s256x128x64gemm_block_scaled_ue8m0xe4m3",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
        "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, float>",
        "triton_tem_fused_addmm_3",
    ],
    "grouped_gemm": [
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>",
        "void deep_gemm::sm90_m_grouped_fp8_gemm_contiguous<4096>",
        "setup_grouped_gemm_kernel",
    ],
    "attention": [
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4>>",
        "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>",
        "void flash_bwd_dot_do_o_kernel<true>",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention)",
    ],
    "attention_unfused": [
        "cunn_SoftMaxForwardReg void at::native::<unnamed>::cunn_SoftMaxForwardReg<float, SoftMaxForwardEpilogue>",
        "cunn_SoftMaxBackwardSmem void at::native::cunn_SoftMaxBackwardSmem<8, c10::BFloat16, SoftMaxBackwardEpilogue>",
        "void scaled_upper_triang_masked_softmax_warp_forward<__half, __half, float, 11>",
        "void scaled_masked_softmax_warp_backward_1<__half, float>",
    ],
    "router": [
        "void softmax_warp_forward<float, float, float, 3, false, false>",
        "gatherTopK void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
        "bitonicSortKVInPlace void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long>",
        "fused_topk_with_score_function_forward_kernel",
    ],
    "permute": [
        "_permute_kernel",
        "_unpermute_bwd_with_merging_probs_kernel",
        "void moe_unpermute_kernel<__nv_bfloat16>",
        "_sort_chunks_by_map_kernel",
        "CatArrayBatchedCopy_vectorized void at::native::CatArrayBatchedCopy_vectorized<OpaqueType<2>>",
        "indexFuncLargeIndex void at::native::indexFuncLargeIndex<c10::BFloat16, long, unsigned int>",
        "_scatter_gather_elementwise_kernel void at::native::_scatter_gather_elementwise_kernel<128, 8>",
    ],
    "norm": [
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>",
        "vectorized_layer_norm_kernel void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, true>",
        "GammaBetaBackwardCUDAKernelTemplate void at::native::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16>",
    ],
    "optimizer": [
        "multi_tensor_apply_kernel void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>",
        "multi_tensor_apply_kernel void at::native::multi_tensor_apply_kernel<BinaryOpScalarFunctor<float>>",
        "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>>",
    ],
    "quantize": [
        "void transformer_engine::cast_transpose_fused_kernel<float>",
        "quantize_mxfp8_kernel",
        "swizzle_row_scaling_kernel",
    ],
    "elementwise": [
        "vectorized_elementwise_kernel void at::native::vectorized_elementwise_kernel<8, BinaryFunctor<c10::BFloat16>>",
        "triton_poi_fused__to_copy_mul_silu_split_0",
        "triton_red_fused_addmm_sum_1",
        "void cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>",
        "reduce_kernel void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "void fused_rope_forward_kernel<__nv_bfloat16>",
        "rotary_fwd_kv_kernel",
        "rotary_bwd_q_kernel",
    ],
    "send_recv": [
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "ncclKernel_SendRecv_RING_SIMPLE",
    ],
    "all_gather": [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LLMC",
    ],
    "reduce_scatter": ["ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"],
    "all_reduce": ["ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)"],
    "broadcast": ["ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"],
    "other_collective": [
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    ],
    "ep_dispatch_combine": [
        "dispatch void deep_ep::intranode::dispatch<(int)4, (int)768, (int)8192>(int4 *, float *)",
        "combine void deep_ep::internode::combine<true, __nv_bfloat16>",
        "void deep_ep::legacy::internode::dispatch<false, 4>",
        "void deep_ep::elastic::hybrid_combine_impl<8>",
        "void deep_ep::internode_ll::dispatch<true>",
        "void hybrid_ep::dispatch_kernel<Traits<16>>",
        "nvshmemi_transfer_rma_kernel",
    ],
    "ep_control": [
        "notify_dispatch void deep_ep::intranode::notify_dispatch<(int)4>(const int *, int *)",
        "cached_notify_combine void deep_ep::intranode::cached_notify_combine<(int)4>(void **)",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>",
        "void deep_ep::elastic::barrier_impl<8>",
        "void hybrid_ep::device_sync_kernel",
        "void hybrid_ep::scan<512>",
        "barrier_on_stream_kernel_threadgroup",
    ],
    "ep_all_to_all": ["ncclSymkDevKernel_AllToAll_LL"],
    "tensor_parallel": ["userbuffers_fp16_sum_inplace_gpu_rr_rs_oop"],
}


@pytest.mark.parametrize(("category", "name"), [(category, name) for category in NAMES for name in NAMES[category]])
def test_a_known_kernel_gets_its_category(category: str, name: str) -> None:
    found = match_kernel(name)
    assert found is not None
    assert found.category == category


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "forward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "backward"),
        ("void flash_bwd_dot_do_o_kernel<true>", None),  # a helper: a backward pass is counted once
        ("cunn_SoftMaxForwardReg void cunn_SoftMaxForwardReg<SoftMaxForwardEpilogue>", "forward"),
        ("cunn_SoftMaxBackwardSmem void cunn_SoftMaxBackwardSmem<SoftMaxBackwardEpilogue>", "backward"),
    ],
)
def test_each_pass_of_attention_is_counted_by_one_kernel(name: str, phase: str | None) -> None:
    found = match_kernel(name)
    assert found is not None
    assert found.phase == phase


def test_only_the_update_itself_marks_a_step() -> None:
    update = match_kernel("void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float>>")
    norm = match_kernel("void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>>")
    assert update is not None
    assert norm is not None
    assert (update.anchor, norm.anchor) == ("step", None)


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaStreamSynchronize_v3020", True),
        ("cudaDeviceSynchronize_v3020", True),
        ("cuCtxSynchronize", True),
        ("cudaMemcpy_v3020", True),
        ("cudaMemcpyAsync_v3020", False),
        ("cudaLaunchKernel_v7000", False),
        ("cudaStreamWaitEvent_v3020", False),
    ],
)
def test_synchronizing_calls_are_distinguished_from_asynchronous_calls(name: str, waits: bool) -> None:
    assert bool(union_of(load_api_patterns(), "synchronize").search(name)) is waits
