"""Layers as Megatron Core launches them (transformer/transformer_layer.py, transformer/moe/moe_layer.py)."""

from __future__ import annotations

from tests.layers.launch_tables import settings

TWO_MICRO_BATCHES = settings(
    num_layers=2, micro_batch_size=1, global_batch_size=2, pipeline_model_parallel_size=1, world_size=1,
    tensor_model_parallel_size=1, context_parallel_size=1,
)  # fmt: skip
"""Of two layers each."""

ATTENTION = """
norm          attention
gemm          attention  projection
elementwise   attention
attention>    attention  attention_core
gemm          attention  projection
elementwise   attention
"""
ATTENTION_BACK = """
gemm          attention  projection
gemm          attention  projection
attention<    attention  attention_core
elementwise   attention
gemm          attention  projection
gemm          attention  projection
norm          attention
"""
UNFUSED = """
norm               attention
gemm               attention  projection
gemm               attention  attention_core
attention_unfused> attention  attention_core
gemm               attention  attention_core
gemm               attention  projection
"""
UNFUSED_BACK = """
gemm               attention  projection
gemm               attention  projection
gemm               attention  attention_core
gemm               attention  attention_core
attention_unfused< attention  attention_core
gemm               attention  attention_core
gemm               attention  attention_core
gemm               attention  projection
gemm               attention  projection
norm               attention
"""
MIXER = """
norm               attention
gemm               attention  projection
linear_attention   attention  attention_core
linear_attention>  attention  attention_core
norm               attention
gemm               attention  projection
elementwise        attention
"""
MIXER_BACK = """
gemm               attention  projection
gemm               attention  projection
norm               attention
linear_attention   attention  attention_core
linear_attention<  attention  attention_core
linear_attention   attention  attention_core
gemm               attention  projection
gemm               attention  projection
norm               attention
"""
MLP = """
norm          mlp
gemm          mlp        projection
elementwise   mlp
gemm          mlp        projection
elementwise   mlp
"""
MLP_BACK = """
gemm          mlp        projection
gemm          mlp        projection
elementwise   mlp
gemm          mlp        projection
gemm          mlp        projection
norm          mlp
"""
ROUTER = """
norm            router    router
gemm            router    router
router          router    router
ep_control      router    preprocess
copy_d2h_pinned router    preprocess
"""
ROUTER_BACK = """
router          router    router
gemm            router    router
gemm            router    router
norm            router    router
"""
EXPERTS = """
permute         dispatch  permute
ep_all_to_all   dispatch  dispatch
permute         dispatch  permute
gemm            experts   expert_gemm
elementwise     experts   expert
gemm            experts   expert_gemm
permute         combine   unpermute
ep_all_to_all   combine   combine
permute         combine   unpermute
elementwise     combine   unpermute
"""
EXPERTS_BACK = """
elementwise     combine   unpermute
permute         combine   unpermute
ep_all_to_all   combine   combine
permute         combine   unpermute
gemm            experts   expert_gemm
gemm            experts   expert_gemm
elementwise     experts   expert
gemm            experts   expert_gemm
gemm            experts   expert_gemm
permute         dispatch  permute
ep_all_to_all   dispatch  dispatch
permute         dispatch  permute
"""
DENSE, DENSE_BACK = ATTENTION + MLP, MLP_BACK + ATTENTION_BACK
MOE, MOE_BACK = ATTENTION + ROUTER + EXPERTS, EXPERTS_BACK + ROUTER_BACK + ATTENTION_BACK

EMBEDDING = """
copy_h2d_pinned outside
elementwise     outside
"""
HEAD = """
norm            outside
gemm            outside
elementwise     outside
"""
HEAD_BACK = """
gemm            outside
gemm            outside
norm            outside
"""
UPDATE = """
optimizer       outside   optimizer
"""


def without_exchanges(table: str) -> str:
    """The table of a rank that holds all experts: it exchanges no tokens."""
    return "\n".join(line for line in table.splitlines() if not line.startswith(("ep_", "copy_d2h")))
