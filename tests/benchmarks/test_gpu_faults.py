"""What benchmarks/gpu/faults.py takes out of a step."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from tests.paths import REPOSITORY

KIT = REPOSITORY / "benchmarks" / "gpu"
sys.path.insert(0, str(KIT))

import faults  # noqa: E402 - a script beside the package

EXPERTS, OTHERS = object(), object()


class Rows(list[int]):
    """As much of a tensor as a copy needs: a slice is a view of it."""

    def __getitem__(self, span: Any) -> Any:
        whole, part = self, Rows(list(self)[span])

        def copy(rows: Rows) -> None:
            whole[span] = rows

        part.copy_ = copy
        return part


@pytest.fixture
def exchanged() -> list[tuple[Any, ...]]:
    return []


@pytest.fixture
def exchange(exchanged: list[tuple[Any, ...]]) -> Any:
    def all_to_all(*arguments: Any) -> str:
        exchanged.append(arguments)
        return "handle"

    return faults.exchange_locally(all_to_all, lambda: EXPERTS)


@pytest.mark.parametrize(("sent", "received"), [([1, 2, 3], [1, 2]), ([1], [1, 0])])
def test_what_fits_of_the_tokens_stays_and_nothing_is_exchanged(
    exchange: Any, exchanged: list[tuple[Any, ...]], sent: list[int], received: list[int]
) -> None:
    output = Rows([0, 0])
    assert exchange(output, Rows(sent), output_split_sizes=[1, 1], input_split_sizes=None, group=EXPERTS) is None
    assert (output, exchanged) == (received, [])


def test_an_exchange_that_is_waited_for_gives_a_handle(exchange: Any) -> None:
    assert exchange(Rows([0]), Rows([1]), None, None, EXPERTS, True).wait()


@pytest.mark.parametrize("group", [OTHERS, None])
def test_other_groups_exchange_as_before(exchange: Any, exchanged: list[tuple[Any, ...]], group: object) -> None:
    output, sent = Rows([0]), Rows([1])
    assert exchange(output, sent, group=group, async_op=True) == "handle"
    assert (output, exchanged) == ([0], [(output, sent, None, None, group, True)])


TWO_RANKS = """
import sys, types
import torch, torch.distributed as dist
import faults
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=2)
experts, others = dist.new_group([0, 1]), dist.new_group([0, 1])
state = types.ModuleType("megatron.core.parallel_state")
state.get_expert_model_parallel_group = lambda: experts
sys.modules[state.__name__] = state
with faults.injected({"local_exchange": True}, rank):
    sent = torch.tensor([10 * rank, 10 * rank + 1])
    for group in (experts, others, None):
        for wait in (True, False):
            output = torch.full((2,), -1)
            handle = dist.all_to_all_single(output, sent, group=group, async_op=wait)
            assert (handle is not None) == wait
            if wait:
                handle.wait()
            assert output.tolist() == (sent.tolist() if group is experts else [rank, 10 + rank]), (group, wait, output)
dist.destroy_process_group()
print("done")
"""


def test_of_two_processes_only_the_experts_keep_what_they_send() -> None:
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    found = {**faults.os.environ, "PYTHONPATH": str(KIT)}
    commands = [[sys.executable, "-c", TWO_RANKS, str(rank), str(port)] for rank in range(2)]
    pipe = subprocess.PIPE
    ranks = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=found) for command in commands]
    for rank in ranks:
        output, errors = rank.communicate(timeout=120)
        assert output == "done\n", errors
