"""A small MoE model as a trace: layers of known kernels, back to back, so that every part's time can be added up.

A forward layer takes 175 ns, of which 95 ns are before its expert GEMMs:
norm 10, GEMM 10, attention 10, GEMM 10, norm 10, router 10, permute 10 | tokens 30, probabilities 5 |
two GEMMs 20 | tokens 30 | unpermute 10, add 10. Replayed it runs the same.
A backward layer takes 225 ns:
add 10, unpermute 10 | tokens 30 | four GEMMs 40 | probabilities 5, tokens 30 | permute 10, router 10, norm 10,
two GEMMs 20, attention 10, two GEMMs 20, norm 20.
DeepEP counts tokens (5 ns) before it sends them, and they are permuted on the rank that receives them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trace_builder import ADAM, GEMM, POINTWISE, SEND_RECV, TraceBuilder

FORWARD = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>"
BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>"
SOFTMAX = "void (anonymous namespace)::cunn_SoftMaxForwardReg<float>"
SOFTMAX_BACKWARD = "void (anonymous namespace)::cunn_SoftMaxBackward<float>"
NORM = "void vectorized_layer_norm_kernel<float>"
NORM_BACKWARD = "void layer_norm_grad_input_kernel_vectorized<float>"
ROUTER = "fused_topk_with_score_function_forward_kernel<float>"
ROUTER_BACKWARD = "fused_topk_with_score_function_backward_kernel<float>"
PERMUTE = "_permute_kernel"
UNPERMUTE = "_unpermute_kernel"
DISPATCH = "void deep_ep::intranode::dispatch<4, 768, 8192>(int4*)"
COMBINE = "void deep_ep::intranode::combine<__nv_bfloat16, 4, 768, 4096>(int4*)"
NOTIFY = "void deep_ep::intranode::notify_dispatch<4>(int const*)"

LAYER_NS = 175

COMMAND = (
    "pretrain_gpt.py --bf16 --num-layers {layers} --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
    "--max-position-embeddings 128 --num-experts 8 --moe-router-topk 2 --micro-batch-size 1 --global-batch-size 8 "
    "--expert-model-parallel-size 4 --moe-token-dispatcher-type {dispatcher}"
)


def command(layers: int = 2, dispatcher: str = "alltoall", more: str = "") -> str:
    """A launch on 4 ranks: two micro-batches per step."""
    return f"{COMMAND.format(layers=layers, dispatcher=dispatcher)} {more}".strip()


@dataclass
class Model:
    """Adds kernels one after the other from ``at``."""

    builder: TraceBuilder = field(default_factory=TraceBuilder)
    at: int = 1
    deepep: bool = False
    has_launches: bool = False
    """Whether launches were recorded: of a main thread, and of the one on which autograd runs the backward pass."""
    is_autograd: bool = False
    """Whether autograd's thread launches what follows."""

    def run(self, *kernels: tuple[str, int]) -> Model:
        for name, length in kernels:
            self.builder.kernel(name, self.at, self.at + length)
            if self.has_launches:
                thread = self.builder.thread + self.is_autograd
                number = self.builder.correlation
                self.builder.api("cudaLaunchKernel_v7000", self.at, self.at + 1, number, thread)
            self.at += length
        return self

    def on_autograd(self, launch: Callable[[], Model]) -> Model:
        """What ``launch`` adds, launched by autograd's thread."""
        before, self.is_autograd = self.is_autograd, True
        launch()
        self.is_autograd = before
        return self

    def idle(self, length: int) -> Model:
        self.at += length
        return self

    def forward(self, expert: int = 10) -> Model:
        """``expert``: length of an expert GEMM."""
        self.run((NORM, 10), (GEMM, 10), (FORWARD, 10), (GEMM, 10), (NORM, 10), (ROUTER, 10))
        if self.deepep:
            self.run((NOTIFY, 5), (DISPATCH, 30), (PERMUTE, 10), *[(GEMM, expert)] * 2, (UNPERMUTE, 10), (COMBINE, 30))
        else:
            self.run((PERMUTE, 10), (SEND_RECV, 30), (SEND_RECV, 5), *[(GEMM, expert)] * 2, (SEND_RECV, 30))
            self.run((UNPERMUTE, 10))
        return self.run((POINTWISE, 10))

    def backward(self, expert: int = 10) -> Model:
        return self.on_autograd(lambda: self._go_back(expert))

    def _go_back(self, expert: int) -> Model:
        self.run((POINTWISE, 10))
        if self.deepep:
            self.run((NOTIFY, 5), (DISPATCH, 30), (UNPERMUTE, 10), *[(GEMM, expert)] * 4, (PERMUTE, 10), (COMBINE, 30))
        else:
            self.run((UNPERMUTE, 10), (SEND_RECV, 30), *[(GEMM, expert)] * 4, (SEND_RECV, 5), (SEND_RECV, 30))
            self.run((PERMUTE, 10))
        self.run((ROUTER_BACKWARD, 10), (NORM_BACKWARD, 10), (GEMM, 10), (GEMM, 10), (BACKWARD, 10))
        return self.run((GEMM, 10), (GEMM, 10), (NORM_BACKWARD, 20))

    def dense(self) -> Model:
        return self.run((NORM, 10), (GEMM, 10), (FORWARD, 10), (GEMM, 10), (NORM, 10), (GEMM, 10), (GEMM, 10))

    def dense_backward(self) -> Model:
        kernels = [*[(GEMM, 10)] * 4, (NORM_BACKWARD, 10), (GEMM, 10), (GEMM, 10), (BACKWARD, 10)]
        return self.on_autograd(lambda: self.run(*kernels, (GEMM, 10), (GEMM, 10), (NORM_BACKWARD, 20)))

    def head(self) -> Model:
        """The output layer, forward and backward."""
        self.run((NORM, 10), (GEMM, 10), (POINTWISE, 10))
        return self.on_autograd(lambda: self.run((GEMM, 10), (GEMM, 10), (NORM_BACKWARD, 10)))

    def update(self) -> Model:
        """The end of a step."""
        return self.idle(50).run((ADAM, 10))

    def micro_batch(self, layers: int = 2, replayed: bool = False) -> Model:
        """Forward through all layers and back, each replayed whole before its backward if so."""
        for _ in range(layers):
            self.forward()
        self.head()
        for _ in range(layers):
            if replayed:
                self.on_autograd(self.forward)
            self.backward()
        return self
