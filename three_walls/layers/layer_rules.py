"""How layers are recognized: limits, and what a layer always launches."""

from __future__ import annotations

MINIMUM_RECOMPUTE_RATIO = 1.25
"""Attention forward passes per backward pass from which layers are taken to be replayed. The ratio is 2 if every layer
is replayed and 1.25 if a quarter of them is."""

FORWARD_GEMMS, BACKWARD_GEMMS = 2, 4
"""GEMMs of shared experts in one pass through an MoE layer."""

CATEGORIES_BEFORE_DISPATCH = ("ep_control", "tensor_parallel", "all_gather", "copy_d2h_pinned", "copy_d2h_pageable")
"""What prepares a dispatch: ranks exchange the counts of their tokens, and the host reads them."""
CATEGORIES_AFTER_LAYERS = ("optimizer", "pipeline_p2p", "copy_h2d_pinned", "copy_h2d_pageable", "all_reduce")
"""What ends the last layer of a micro-batch where no norm follows it."""
