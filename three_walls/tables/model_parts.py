"""The words for what an operation of a step is part of.

``module`` and ``part`` are those of the forward pass in all directions: what goes back through the dispatch is of the
dispatch, although a backward pass runs it after the experts.
"""

from __future__ import annotations

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
DIRECTIONS = (FORWARD, RECOMPUTE, BACKWARD)
"""``recompute``: a part of the forward pass that runs again in the backward pass."""

ATTENTION, ROUTER, DISPATCH, EXPERTS, COMBINE, MLP, OUTSIDE = (
    "attention",
    "router",
    "dispatch",
    "experts",
    "combine",
    "mlp",
    "outside",
)
MODULES = (ATTENTION, ROUTER, DISPATCH, EXPERTS, COMBINE, MLP, OUTSIDE)
"""``attention`` is what mixes tokens: attention, linear attention or a state space model. ``router`` begins with the
norm before it, and contains the shared experts; ``dispatch`` and ``combine`` contain the permutations of tokens.
``mlp`` is that of a dense layer, and ``outside`` what belongs to no layer."""

VISION, MTP = "vision", "mtp"
STACKS = (VISION, MTP)
"""Blocks of layers besides the model's own: the tower that encodes images, which is ``outside``, and the layers of
multi-token prediction, which are numbered after the model's."""

PERMUTE, EXPERT_GEMM, EXPERT, UNPERMUTE = "permute", "expert_gemm", "expert", "unpermute"
SHARED_EXPERT, PREPROCESS, ATTENTION_CORE, PROJECTION = "shared_expert", "preprocess", "attention_core", "projection"
OPTIMIZER, GRADIENT_REDUCTION = "optimizer", "gradient_reduction"
MOE_PARTS = (ROUTER, PREPROCESS, PERMUTE, DISPATCH, EXPERT_GEMM, EXPERT, COMBINE, UNPERMUTE, SHARED_EXPERT)
"""Parts of an MoE layer in the order of the forward pass. ``preprocess`` prepares a dispatch: ranks exchange the counts
of their tokens, and the host reads them. ``dispatch`` and ``combine`` are the exchanges of tokens, ``expert`` is what
experts run besides their GEMMs."""

ROPE, ROUTER_TOPK, BIAS_DROPOUT_ADD = "rope", "router_topk", "bias_dropout_add"
LOSS, WGRAD_ACCUMULATION, BARRIER = "loss", "wgrad_accumulation", "barrier"
OPERATORS = (ROPE, ROUTER_TOPK, BIAS_DROPOUT_ADD, LOSS, WGRAD_ACCUMULATION, BARRIER)
"""Work that is named by the operators around its launch, whatever part it is of."""
PARTS = (*MOE_PARTS, ATTENTION_CORE, PROJECTION, OPTIMIZER, GRADIENT_REDUCTION)
