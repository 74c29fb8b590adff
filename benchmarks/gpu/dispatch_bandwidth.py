"""How fast the GPUs of a host exchange tokens: dispatch and combine by all-to-all, DeepEP and HybridEP.

    torchrun --nproc-per-node 8 benchmarks/gpu/dispatch_bandwidth.py --out bandwidth.json
    torchrun --nproc-per-node 2 benchmarks/gpu/dispatch_bandwidth.py --device cpu --shape 64,128,2,2 --out cpu.json

DeepEP and HybridEP are called through Megatron Core, as its dispatchers call them, each with several numbers of SMs. A
dispatcher that is missing or fails is listed with the reason; no time is made up for it. Every exchange is checked
first: what comes back must be each token as often as it was sent.

A time is the median over repeats of the slowest GPU, by CUDA events after a barrier. It holds what a dispatcher does
on the host meanwhile: DeepEP's count of tokens for each GPU, HybridEP's preprocessing and permutation. `alltoall`
permutes, too, but knows its counts; `alltoall-rows` is the exchange of the rows alone.

Two bandwidths of one time, both per GPU and direction:

- ``left_gb_per_s``: bytes of rows that leave the GPU, as often as this dispatcher sends them. What a link carries.
- ``algorithm_gb_per_s``: bytes of all rows that a GPU receives, one for each token and GPU, its own included. So DeepEP
  counts and so do the published tables; it is no speed of a link, and compares dispatchers as their times do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from exchange_rows import (
    Choices,
    Shape,
    choose_experts,
    count_copies,
    count_tokens,
    mean_leaving,
    mean_received,
    parse_shape,
    row_bytes,
)

SHAPES = ("4096,8192,8,2", "4096,7168,8,8", "4096,4096,8,16", "4096,2048,8,16")
"""The Hybrid-EP guide's, that of DeepEP's tables, and two like Qwen3's 235B and 30B with 128 experts on eight GPUs."""
SMS = {"deepep": (8, 16, 20, 24, 32), "hybridep": (4, 8, 16, 24, 32)}
"""Megatron Core starts with 20 and 16."""
DISPATCHERS = ("alltoall", "alltoall-rows", "deepep", "hybridep")
PACKAGES = ("torch", "megatron-core", "deep_ep", "nvidia-nccl-cu13", "nvidia-nccl-cu12")


@dataclass(frozen=True)
class Result:
    """One measured exchange. ``sms`` is None where the library chooses."""

    dispatcher: str
    operation: str
    tokens: int
    hidden: int
    topk: int
    experts_per_gpu: int
    dtype: str
    sms: int | None
    left_bytes: int
    algorithm_bytes: int
    median_us: float
    quartiles_us: tuple[float, float]
    left_gb_per_s: float
    algorithm_gb_per_s: float


@dataclass(frozen=True)
class Missing:
    """A measurement that was not made, and why."""

    dispatcher: str
    reason: str


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--shape", action="append", help="TOKENS,HIDDEN,TOPK,EXPERTS_PER_GPU; may be repeated")
    parser.add_argument("--dispatcher", action="append", choices=DISPATCHERS, help="all, unless named")
    parser.add_argument("--sms", action="append", type=int, help="numbers of SMs of DeepEP and HybridEP")
    parser.add_argument("--dtype", action="append", choices=("bf16", "fp8"), help="of dispatch; combine is bf16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu checks the script, not a link")
    parser.add_argument("--backend", help="of torch.distributed: nccl, or gloo on a CPU")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many seconds")
    options = parser.parse_args(arguments)

    bench = Bench(options.device, options.backend, options.repeats, options.warmup)
    results: list[Result] = []
    missing: list[Missing] = []
    shapes = [parse_shape(text) for text in options.shape or SHAPES]
    names, dtypes = options.dispatcher or DISPATCHERS, options.dtype or ("bf16", "fp8")
    for name, shape, dtype, sms in list_measurements(shapes, names, options.sms, dtypes):
        is_late = bench.is_late(options.seconds)
        found = "no time was left" if is_late else bench.measure(name, shape, dtype, sms)
        if isinstance(found, str):
            missing.append(Missing(name, found))
        else:
            results += found
            for each in found:
                bench.say(describe(each))
        if bench.rank == 0:  # each time: a library may end the process
            write(options.out, bench.describe() | summarize(results, missing))
    for left_out in summarize([], missing)["missing"]:
        bench.say(f"not measured ({left_out['measurements']}): {left_out['dispatcher']}: {left_out['reason']}")
    bench.end()


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def list_measurements(
    shapes: Sequence[Shape], names: Sequence[str], sms: Sequence[int] | None, dtypes: Sequence[str]
) -> Iterator[tuple[str, Shape, str, int | None]]:
    """Each dispatcher with each shape, type and number of SMs; the libraries that may break the process come last."""
    for name in names:
        for shape in shapes:
            for dtype in dtypes:
                counts: Sequence[int | None] = (sms or SMS[name]) if name in SMS else (None,)
                for count in counts:
                    yield name, shape, dtype, count


def describe(result: Result) -> str:
    sms = "" if result.sms is None else f" {result.sms} SMs"
    return (
        f"{result.dispatcher}{sms}, {result.tokens} x {result.hidden}, top-{result.topk}, "
        f"{result.experts_per_gpu} experts a GPU, {result.operation} {result.dtype}: {result.median_us:.0f} us, "
        f"{result.left_gb_per_s:.1f} GB/s leave, {result.algorithm_gb_per_s:.1f} GB/s by the algorithm"
    )


def summarize(results: Sequence[Result], missing: Sequence[Missing]) -> dict[str, Any]:
    """What the file holds; a reason that holds for all of a dispatcher is said once."""
    return {
        "results": [asdict(result) for result in results],
        "missing": [asdict(each) | {"measurements": count} for each, count in Counter(missing).items()],
    }


def rate(
    name: str, operation: str, shape: Shape, dtype: str, sms: int | None, gpus: int, times_us: Sequence[float]
) -> Result:
    """Bytes and bandwidths of an exchange that took ``times_us``."""
    choices = [choose_experts(shape, gpus, rank) for rank in range(gpus)]
    copies = [count_copies(each, shape, gpus) for each in choices]
    tokens = [count_tokens(each, shape, gpus) for each in choices]
    size = row_bytes(shape.hidden, dtype)
    left = mean_leaving(copies if name.startswith("alltoall") else tokens) * size
    algorithm = mean_received(tokens) * size
    low, median, high = statistics.quantiles(times_us, n=4, method="inclusive")
    return Result(
        name,
        operation,
        **asdict(shape),
        dtype=dtype,
        sms=sms,
        left_bytes=round(left),
        algorithm_bytes=round(algorithm),
        median_us=round(median, 1),
        quartiles_us=(round(low, 1), round(high, 1)),
        left_gb_per_s=round(left / median / 1e3, 2),
        algorithm_gb_per_s=round(algorithm / median / 1e3, 2),
    )


class Bench:
    """The processes, one for each GPU, and their clock."""

    def __init__(self, device: str, backend: str | None, repeats: int, warmup: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.repeats, self.warmup = max(2, repeats), warmup
        self.started = time.monotonic()
        # Without it HybridEP of older releases does not know which ranks share NVLink: here all do.
        os.environ.setdefault("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", str(self.gpus))
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        self.device = torch.device(device)
        dist.init_process_group(backend or ("nccl" if device == "cuda" else "gloo"))

    def end(self) -> None:
        self.dist.destroy_process_group()

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def is_late(self, limit_s: float) -> bool:
        """Whether any rank is past the limit: all must stop at the same measurement."""
        return self.largest(float(time.monotonic() - self.started > limit_s)) > 0

    def largest(self, value: float) -> float:
        """The largest of the values that the ranks have."""
        values = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(values, op=self.dist.ReduceOp.MAX)
        return float(values.item())

    def describe(self) -> dict[str, Any]:
        is_gpu = self.device.type == "cuda"
        return {
            "gpu": self.torch.cuda.get_device_name() if is_gpu else "none: a check of the script on a CPU",
            "gpus": self.gpus,
            "backend": self.dist.get_backend(),
            "repeats": self.repeats,
            "versions": {name: version for name in PACKAGES if (version := find_version(name))},
            "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
        }

    def measure(self, name: str, shape: Shape, dtype: str, sms: int | None) -> list[Result] | str:
        """Dispatch and combine, or why they were not measured."""
        experts = shape.experts_per_gpu * self.gpus
        if shape.topk > experts:
            return f"a token chooses {shape.topk} experts, and {self.gpus} GPUs hold {experts}"
        made: list[Exchange] = []
        for attempt in (lambda: made.append(EXCHANGES[name](self, shape, dtype, sms)), lambda: made[0].check()):
            reason = ""
            try:
                attempt()
            except Exception as error:  # whatever a library raises is the reason
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            if self.largest(float(bool(reason))):  # an exchange without one of the ranks would never end
                return reason or "it failed on another rank"
        found = []
        for operation, work in made[0].operations().items():
            times_us = self.time(work)
            sent = dtype if operation == "dispatch" else "bf16"
            found.append(rate(name, operation, shape, sent, sms, self.gpus, times_us))
        return found

    def time(self, work: Callable[[], Any]) -> list[float]:
        """Microseconds of each repeat on the slowest rank."""
        barrier = self.torch.zeros(1, device=self.device)
        times = []
        for repeat in range(self.warmup + self.repeats):
            self.dist.all_reduce(barrier)  # the ranks begin together: a wait for a late one is not the exchange
            took_us = self._time_once(work)
            times += [self.largest(took_us)] if repeat >= self.warmup else []
        return times

    def _time_once(self, work: Callable[[], Any]) -> float:
        if self.device.type == "cpu":
            started = time.perf_counter()
            work()
            return (time.perf_counter() - started) * 1e6
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3


def find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class Exchange(ABC):
    """Tokens of one shape on this rank, and the two operations of a dispatcher on them."""

    def __init__(self, bench: Bench, shape: Shape, dtype: str, sms: int | None) -> None:
        self.bench, self.shape, self.dtype, self.sms = bench, shape, dtype, sms
        torch = bench.torch
        self.group = bench.dist.group.WORLD
        self.experts = shape.experts_per_gpu * bench.gpus
        self.choices: Choices = choose_experts(shape, bench.gpus, bench.rank)
        self.chosen = torch.tensor(self.choices, device=bench.device)
        generator = torch.Generator().manual_seed(bench.rank)
        self.tokens = torch.randn(shape.tokens, shape.hidden, generator=generator).to(torch.bfloat16).to(bench.device)

    @abstractmethod
    def dispatch(self) -> Any: ...

    @abstractmethod
    def combine(self) -> Any:
        """The tokens that come back, added up; the experts change nothing."""

    @abstractmethod
    def times_sent(self) -> Any:
        """How often each token comes back, as a column."""

    def operations(self) -> dict[str, Callable[[], Any]]:
        return {"dispatch": self.dispatch, "combine": self.combine}

    def check(self) -> None:
        """Raises AssertionError where other tokens come back than were sent."""
        with self.bench.torch.no_grad():
            self.dispatch()
            got, sent = self.combine().float(), self.tokens.float() * self.times_sent()
        if not self.bench.torch.allclose(got, sent, rtol=2e-2, atol=2e-2 * self.shape.topk):
            raise AssertionError("what came back is not what was sent")


class AllToAll(Exchange):
    """Megatron's alltoall: rows are sorted by expert, exchanged, and sorted by the experts of this GPU."""

    permutes = True

    def __init__(self, bench: Bench, shape: Shape, dtype: str, sms: int | None) -> None:
        super().__init__(bench, shape, dtype, sms)
        torch, gpus = bench.torch, bench.gpus
        self.sent_rows = count_copies(self.choices, shape, gpus)
        others = [choose_experts(shape, gpus, rank) for rank in range(gpus)]
        self.received_rows = [count_copies(each, shape, gpus)[bench.rank] for each in others]
        flat = self.chosen.flatten()
        order = torch.argsort(flat, stable=True)
        self.token_of_row = order // shape.topk
        received = [sorted(expert for experts in each for expert in experts) for each in others]
        mine = [expert for each in received for expert in each if expert // shape.experts_per_gpu == bench.rank]
        self.by_expert = torch.argsort(torch.tensor(mine, device=bench.device), stable=True)
        self.as_received = torch.argsort(self.by_expert)
        if dtype == "fp8":  # rows with their scales, as bytes
            size = row_bytes(shape.hidden, dtype)
            self.rows = torch.zeros(shape.tokens, size, dtype=torch.uint8, device=bench.device)
        else:
            self.rows = self.tokens
        self.to_send = self.rows[self.token_of_row]
        self.received = self.rows.new_empty(sum(self.received_rows), self.rows.shape[1])
        self.came_back = self.tokens.new_empty(len(order), shape.hidden)

    def operations(self) -> dict[str, Callable[[], Any]]:
        both = super().operations()
        return both if self.dtype == "bf16" else {"dispatch": both["dispatch"]}  # combine is bf16 in any case

    def dispatch(self) -> Any:
        rows = self.rows[self.token_of_row] if self.permutes else self.to_send
        self.bench.dist.all_to_all_single(self.received, rows, self.received_rows, self.sent_rows)
        self.sorted = self.received[self.by_expert] if self.permutes else self.received
        return self.sorted

    def combine(self) -> Any:
        rows = self.sorted[self.as_received] if self.permutes else self.received
        self.bench.dist.all_to_all_single(self.came_back, rows, self.sent_rows, self.received_rows)
        if not self.permutes:
            return self.came_back
        return self.bench.torch.zeros_like(self.tokens).index_add_(0, self.token_of_row, self.came_back)

    def times_sent(self) -> Any:
        return self.shape.topk

    def check(self) -> None:
        if self.dtype == "fp8":
            self.dispatch()  # the bytes have no meaning
        elif self.permutes:
            super().check()
        else:
            self.dispatch()
            if not self.bench.torch.equal(self.combine(), self.to_send):
                raise AssertionError("what came back is not what was sent")


class AllToAllRows(AllToAll):
    """The exchange of the rows alone: they lie sorted, and are left as they come."""

    permutes = False


def import_flex(name: str, dtype: str) -> Any:
    """Megatron Core's module with the calls of DeepEP and HybridEP. Raises ImportError."""
    if dtype == "fp8":
        raise ImportError("Megatron Core dispatches in BF16 with DeepEP and HybridEP")
    from megatron.core.transformer.moe import fused_a2a

    if getattr(fused_a2a, name) is None:
        raise ImportError(f"Megatron Core has no {name}: deep_ep does not import, or is built without it")
    return fused_a2a


class DeepEP(Exchange):
    def __init__(self, bench: Bench, shape: Shape, dtype: str, sms: int | None) -> None:
        self.calls = import_flex("fused_dispatch", dtype)
        super().__init__(bench, shape, dtype, sms)
        self.weights = bench.torch.ones(self.chosen.shape, dtype=bench.torch.float32, device=bench.device)
        if sms is not None:
            self.calls.set_deepep_num_sms(sms)

    def dispatch(self) -> Any:
        self.received, _, _, _, self.handle = self.calls.fused_dispatch(
            self.tokens, self.chosen, self.weights, self.experts, self.group
        )
        return self.received

    def combine(self) -> Any:
        return self.calls.fused_combine(self.received, self.group, self.handle)[0]

    def times_sent(self) -> Any:
        gpus = self.chosen // self.shape.experts_per_gpu
        hit = self.bench.torch.zeros(self.shape.tokens, self.bench.gpus, device=self.bench.device)
        return hit.scatter(1, gpus, 1).sum(1, keepdim=True)


class HybridEP(Exchange):
    def __init__(self, bench: Bench, shape: Shape, dtype: str, sms: int | None) -> None:
        self.calls = import_flex("hybrid_ep_dispatch", dtype)
        super().__init__(bench, shape, dtype, sms)
        torch = bench.torch
        self.routing = torch.zeros(shape.tokens, self.experts, dtype=torch.bool, device=bench.device)
        self.routing.scatter_(1, self.chosen, True)
        self.weights = self.routing.float()
        self.calls.reset_hybrid_ep_buffer()  # its number of SMs is that of its first call

    def dispatch(self) -> Any:
        self.received, _, _, per_expert, self.handle = self.calls.hybrid_ep_dispatch(
            x=self.tokens,
            routing_map=self.routing,
            probs=self.weights,
            group=self.group,
            num_local_experts=self.shape.experts_per_gpu,
            num_sms_dispatch_api=self.sms,
            num_sms_combine_api=self.sms,
        )
        self.rows = per_expert.sum()
        return self.received

    def combine(self) -> Any:
        return self.calls.hybrid_ep_combine(
            x=self.received, handle=self.handle, num_permuted_tokens=self.rows, pad_multiple=None
        )

    def times_sent(self) -> Any:
        return self.shape.topk


EXCHANGES: dict[str, type[Exchange]] = {
    "alltoall": AllToAll,
    "alltoall-rows": AllToAllRows,
    "deepep": DeepEP,
    "hybridep": HybridEP,
}


if __name__ == "__main__":
    main(sys.argv[1:])
