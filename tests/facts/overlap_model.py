"""A small MoE model under expert-parallel overlap: the nodes of one micro-batch's forward between another's backward.

Nodes follow one another as Megatron Core launches them; every kernel takes 10 ns, token exchanges 30 ns, the
probabilities' exchange 5 ns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trace_builder import ADAM, GEMM, POINTWISE, SEND_RECV, TraceBuilder

from tests.facts.moe_model import (
    BACKWARD,
    FORWARD,
    NORM,
    NORM_BACKWARD,
    PERMUTE,
    ROUTER,
    ROUTER_BACKWARD,
    UNPERMUTE,
)

COMPUTE, COMMUNICATE = 7, 31

Kernels = tuple[tuple[str, int], ...]

NODES: dict[str, tuple[int, Kernels]] = {
    # Attention permutes for itself (rotary embedding) before its GEMM: that is no part of the MoE layer.
    "attn forward": (
        COMPUTE,
        ((NORM, 10), (PERMUTE, 10), (GEMM, 10), (FORWARD, 10), (GEMM, 10), (NORM, 10), (ROUTER, 10), (PERMUTE, 10)),
    ),
    "moe_dispatch forward": (COMMUNICATE, ((SEND_RECV, 30), (SEND_RECV, 5))),
    "mlp forward": (COMPUTE, ((PERMUTE, 10), (GEMM, 10), (GEMM, 10), (UNPERMUTE, 10))),
    "moe_combine forward": (COMMUNICATE, ((SEND_RECV, 30), (UNPERMUTE, 10), (POINTWISE, 10))),
    "moe_combine backward": (COMMUNICATE, ((UNPERMUTE, 10), (SEND_RECV, 30))),
    "mlp backward": (COMPUTE, ((UNPERMUTE, 10), *[(GEMM, 10)] * 4, (PERMUTE, 10))),
    "moe_dispatch backward": (COMMUNICATE, ((SEND_RECV, 5), (SEND_RECV, 30))),
    "attn backward": (
        COMPUTE,
        ((PERMUTE, 10), (ROUTER_BACKWARD, 10), (NORM_BACKWARD, 10), (GEMM, 10), (BACKWARD, 10), (PERMUTE, 10)),
    ),
}

FORWARD_NODES = ("attn forward", "moe_dispatch forward", "mlp forward", "moe_combine forward")
BACKWARD_NODES = ("moe_combine backward", "mlp backward", "moe_dispatch backward", "attn backward")
BOTH_NODES = (
    "moe_combine backward",
    "attn forward",
    "mlp backward",
    "moe_dispatch forward",
    "moe_dispatch backward",
    "mlp forward",
    "moe_combine forward",
    "attn backward",
)


@dataclass
class OverlappedModel:
    """Adds nodes one after the other from ``at``; each kernel is launched as it begins."""

    builder: TraceBuilder = field(default_factory=TraceBuilder)
    at: int = 10
    named: bool = True
    """Whether the trace has the nodes' NVTX ranges."""

    def node(self, name: str, kernels: Kernels | None = None, called: str | None = None) -> OverlappedModel:
        stream, own = NODES.get(name, (COMPUTE, ()))
        began = self.at
        for kernel, length in own if kernels is None else kernels:
            self.builder.kernel(kernel, self.at + 1, self.at + 1 + length, stream, launched=self.at)
            self.at += length + 1
        if self.named:
            self.builder.nvtx(called or name, began, self.at)
        return self

    def layers(self, nodes: tuple[str, ...], count: int = 2) -> OverlappedModel:
        for name in nodes * count:
            self.node(name)
        return self

    def step(self) -> OverlappedModel:
        """Two micro-batches through two layers, and the update."""
        self.layers(FORWARD_NODES).head().layers(BOTH_NODES).head().layers(BACKWARD_NODES)
        return self.update()

    def head(self) -> OverlappedModel:
        """The output layer, forward and backward."""
        return self.node("post_process forward", ((GEMM, 10),)).node("post_process backward", ((GEMM, 10), (GEMM, 10)))

    def update(self) -> OverlappedModel:
        self.at += 50
        self.builder.kernel(ADAM, self.at + 1, self.at + 11, COMPUTE, launched=self.at)
        self.at += 11
        return self
