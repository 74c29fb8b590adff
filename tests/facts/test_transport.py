"""Whether communication runs over NVLink: the bandwidth reached, and the variables that take the path away."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest

from tests.facts import views
from tests.facts.views import RANK, run_view, step_view
from tests.step.test_operators import nest
from three_walls.facts import transport
from three_walls.facts.transport import gpu_lists, gpus_reordered, visible_gpus
from three_walls.lib.fact import FactValue
from three_walls.lib.measurement import known, missing
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.tables.hardware import find_gpu

H200 = find_gpu("NVIDIA H200")
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
NAMES = {0: REDUCE_SCATTER, 1: ALL_GATHER}
SHAPES = "c10d::reduce_scatter_tensor_coalesced_, op_id = 1, sizes = [[25000], [100000], [], [], [], []]"
"""300 kB of FP32 for three other ranks."""

NO_ARRIVALS = pl.DataFrame(
    schema={
        "rank_index": pl.Int64,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "transfer_ns": pl.Int64,
        "resolved": pl.Boolean,
    }
)


def measure(
    *kernels: tuple[str, int, int, int, int],
    ranges: tuple[tuple[str, int, int, int], ...] = (),
    exchange: float | None = None,
    arrivals: pl.DataFrame = NO_ARRIVALS,
    ep: int = 4,
    tp: int = 2,
    gradients: int | None = None,
    **variables: str,
) -> dict[str, tuple[FactValue, str | None]]:
    """``kernels``: category, name id, launch, start, end. ``exchange``: bytes per second of the fastest one."""
    sizes = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": 1, "context_parallel_size": 1}
    sizes |= {"expert_model_parallel_size": ep, "expert_tensor_parallel_size": 1}
    environment = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", **variables} if variables.pop("known", "yes") else {}
    config = RunConfig(
        {key: ConfigValue(value, "test") for key, value in sizes.items()},
        {key: ConfigValue(value, "test") for key, value in environment.items() if key != "known"},
    )
    columns = ["rank_index", "kind", "category", "name_id", "launch_thread", "launch_start_ns", "start_ns", "end_ns"]
    rows = [(0, "kernel", category, name, 1, launch, start, end) for category, name, launch, start, end in kernels]
    frame = (
        pl.DataFrame(rows, schema=columns, orient="row")
        if rows
        else pl.DataFrame(
            schema={
                **dict.fromkeys(columns, pl.Int64),
                "kind": pl.String,
                "category": pl.String,
            }
        )
    )
    step = step_view(frame, run=run_view(config, H200), window=(0, 10**9), names=NAMES)
    rate = known(exchange) if exchange else missing("not known")
    return views.measure(
        transport,
        step=step,
        operators=nest(*ranges),
        matched_ranks=SimpleNamespace(arrivals=arrivals),
        memory_gradients_bytes=known(gradients) if gradients else missing("not known"),
        ep_fastest_bytes_per_s=rate,
        ep_link_bytes_per_s=known(450e9),
    )


def test_the_fastest_communication_shows_that_nvlink_is_used() -> None:
    found = measure(exchange=315e9)
    assert found["nvlink_achieved_fraction"] == (0.7, None)
    assert found["nccl_transport_disabled"] == (False, None)


def gpu_order(*lists: str | None, hosts: str = "aaaaaaaa", local_size: int = 4) -> tuple[FactValue, FactValue]:
    """(the lists, whether they reorder the GPUs) for ranks 0, 1, ... with these CUDA_VISIBLE_DEVICES on ``hosts``."""
    config = RunConfig({}, {"LOCAL_WORLD_SIZE": ConfigValue(str(local_size), "test")})
    ranks = tuple(replace(RANK, rank=number, host=host) for number, host in zip(range(len(lists)), hosts, strict=False))
    run = replace(run_view(config, H200), ranks=ranks, visible_gpus=lists)
    found = gpu_lists(step_view(run=run))
    return visible_gpus(found).value, gpus_reordered(found)


def test_a_list_of_gpus_that_does_not_ascend_reorders_the_host() -> None:
    assert gpu_order("0,4,1,5,2,6,3,7") == ("0,4,1,5,2,6,3,7", True)
    assert gpu_order("0,1,2,3", "0,1,2,3") == ("0,1,2,3", False)
    assert gpu_order("4,5,6,7") == ("4,5,6,7", False)
    assert gpu_order("3,2,1,0", local_size=1) == (None, False)  # no other rank to talk to


def test_ranks_of_a_host_with_different_lists_reorder_it() -> None:
    assert gpu_order("0,1,2,3", "1,0,2,3") == ("0,1,2,3; 1,0,2,3", True)
    assert gpu_order("0,1,2,3", "4,5,6,7", hosts="ab") == ("0,1,2,3; 4,5,6,7", False)  # each is a host of its own


def test_one_gpu_per_rank_is_reordered_where_the_numbers_fall() -> None:
    assert gpu_order("0", "1", "2", "3") == ("0; 1; 2; 3", False)
    assert gpu_order("0", "4", "1", "5") == ("0; 4; 1; 5", True)
    assert gpu_order("0", "0", "0", "0") == ("0", False)  # containers number their only GPU 0


def test_names_of_gpus_and_unrecorded_lists_show_no_order() -> None:
    assert gpu_order("GPU-8f", "GPU-1a")[1] is False
    assert gpu_order(None, None) == (None, False)


@pytest.mark.parametrize("value", ["true", "2", "0"])
def test_nccl_takes_only_1_as_disabled(value: str) -> None:
    """NCCL reads a number and compares it with 1: a word reads as 0."""
    assert measure(exchange=31.5e9, NCCL_P2P_DISABLE=value)["nccl_transport_disabled"] == (False, None)


def test_a_variable_that_disables_peer_access_is_the_cause_of_a_slow_link() -> None:
    found = measure(exchange=31.5e9, NCCL_P2P_DISABLE="1")
    assert found["nvlink_achieved_fraction"] == (0.07, None)
    assert found["nccl_disabled_transport"] == ("NCCL_P2P_DISABLE=1", None)
    assert found["nccl_transport_disabled"] == (True, None)


@pytest.mark.parametrize(
    ("variables", "cause", "is_disabled"),
    [
        ({"NCCL_P2P_DISABLE": "0"}, "none", False),
        ({"NCCL_P2P_LEVEL": "NVL"}, "none", False),
        ({"NCCL_P2P_LEVEL": "loc"}, "NCCL_P2P_LEVEL=loc", True),
        ({"NCCL_IB_DISABLE": "1", "WORLD_SIZE": "8"}, "NCCL_IB_DISABLE=1", True),
        ({"NCCL_NET": "Socket", "WORLD_SIZE": "8"}, "NCCL_NET=Socket", True),
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1", False),  # one host: nothing crosses the network
        ({"NCCL_NET": "IB"}, "none", False),
        ({"NCCL_IB_DISABLE": "1", "WORLD_SIZE": "8", "FI_PROVIDER": "efa"}, "none", False),  # a plugin drives EFA
        ({"NCCL_IB_DISABLE": "1", "WORLD_SIZE": "8", "NCCL_IB_HCA": "mlx5"}, "NCCL_IB_DISABLE=1", True),
    ],
)
def test_only_values_that_take_a_path_away_count(variables: dict[str, str], cause: str, is_disabled: bool) -> None:
    found = measure(**variables)
    assert found["nccl_disabled_transport"] == (cause, None)
    assert found["nccl_transport_disabled"] == (is_disabled, None)


@pytest.mark.parametrize(
    ("variables", "adapters"),
    [
        ({"FI_PROVIDER": "efa"}, "EFA"),
        ({"FI_EFA_USE_DEVICE_RDMA": "1", "NCCL_NET": "AWS Libfabric"}, "EFA"),
        ({"FI_EFA_USE_DEVICE_RDMA": "0"}, "none"),
        ({"FI_PROVIDER": "cxi", "NCCL_NET": "AWS Libfabric"}, "Slingshot"),  # the same plugin
        ({"NCCL_NET": "AWS Libfabric"}, "libfabric"),
        ({"NCCL_NET_PLUGIN": "libnccl-net-ofi.so"}, "libfabric"),
        ({"NCCL_FASTRAK_CTRL_DEV": "eth0"}, "GPUDirect-TCPXO"),
        ({"NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2"}, "GPUDirect-TCPX"),
        ({"NCCL_NET": "gIB"}, "ConnectX"),
        ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}, "ConnectX"),
        ({"NCCL_IB_HCA": "^mlx5_2"}, "none"),  # what is left out shows nothing of the others
        ({"NCCL_IB_HCA": "bnxt_re0"}, "another vendor"),
        ({"NCCL_NET": "IB"}, "none"),  # NCCL's name of InfiniBand and RoCE of any vendor
        ({}, "none"),
    ],
)
def test_variables_show_the_adapters(variables: dict[str, str], adapters: str) -> None:
    assert measure(**variables)["network_adapters"] == (adapters, None)


def test_a_variable_without_effect_disables_nothing() -> None:
    """Where the exchange is fast all the same, the variable did not reach NCCL."""
    found = measure(exchange=315e9, NCCL_P2P_DISABLE="1")
    assert found["nccl_disabled_transport"] == ("NCCL_P2P_DISABLE=1", None)
    assert found["nccl_transport_disabled"] == (False, None)


def test_without_the_environment_nothing_is_called_disabled() -> None:
    found = measure(exchange=31.5e9, known="")
    assert found["nccl_disabled_transport"] == ("unknown", None)
    assert found["nccl_forced_settings"] == ("unknown", None)
    assert found["network_adapters"] == ("unknown", None)
    assert found["nccl_transport_disabled"] == (False, None)


def test_forced_settings_are_listed_with_their_values() -> None:
    assert measure(NCCL_PROTO="LL", NCCL_MAX_NCHANNELS="2")["nccl_forced_settings"] == (
        "NCCL_PROTO=LL, NCCL_MAX_NCHANNELS=2",
        None,
    )


def test_a_gradient_reduction_shows_the_bandwidth_by_its_recorded_shapes() -> None:
    found = measure(("data_parallel", 0, 5, 100, 1100), ranges=((SHAPES, 0, 10, 1),))
    assert found["dp_fastest_bytes_per_s"] == (300e9, None)
    assert found["nvlink_achieved_fraction"] == (pytest.approx(2 / 3), None)


def test_waiting_for_the_last_rank_is_left_out_where_all_were_captured() -> None:
    arrivals = pl.DataFrame([(0, 100, 1100, 500, True)], schema=NO_ARRIVALS.schema, orient="row")
    found = measure(("data_parallel", 0, 5, 100, 1100), ranges=((SHAPES, 0, 10, 1),), arrivals=arrivals)
    assert found["dp_fastest_bytes_per_s"] == (600e9, None)


def test_without_shapes_the_gradients_that_every_rank_holds_show_the_bandwidth() -> None:
    """Three quarters of 400 kB leave a rank in two reductions of 500 ns each."""
    reductions = (
        ("data_parallel", 0, 5, 100, 600),
        ("data_parallel", 0, 6, 700, 1200),
        ("data_parallel", 1, 7, 1300, 9000),
    )
    found = measure(*reductions, gradients=400_000, tp=1, ep=1)
    assert found["dp_fastest_bytes_per_s"] == (300e9, None)
    assert found["nvlink_achieved_fraction"] == (pytest.approx(2 / 3), None)
    by_shapes = measure(*reductions, ranges=((SHAPES, 0, 6, 1),), gradients=1, tp=1, ep=1)
    assert by_shapes["dp_fastest_bytes_per_s"] == (600e9, None)


@pytest.mark.parametrize(("tp", "ep"), [(1, 4), (2, 1)])
def test_gradients_of_which_ranks_hold_parts_show_no_bandwidth(tp: int, ep: int) -> None:
    found = measure(("data_parallel", 0, 5, 100, 600), gradients=400_000, tp=tp, ep=ep)
    assert found["dp_fastest_bytes_per_s"][0] is None


def test_tensor_parallel_reductions_take_their_group_from_the_config() -> None:
    """Half of 100,000 elements go to the other rank."""
    shapes = "nccl:_reduce_scatter_base, op_id = 1, sizes = [[100000]]"
    found = measure(("tensor_parallel", 0, 5, 100, 1100), ranges=((shapes, 0, 10, 1),))
    assert found["tp_fastest_bytes_per_s"] == (200e9, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [(1, SHAPES), (0, "c10d::reduce_scatter_tensor_coalesced_, op_id = 1"), (0, "aten::add, sizes = [[100000]]")],
)
def test_without_element_size_or_shapes_the_bandwidth_is_unknown(name: int, text: str) -> None:
    found = measure(("data_parallel", name, 5, 100, 1100), ranges=((text, 0, 10, 1),))
    assert (
        found["dp_fastest_bytes_per_s"][1]
        == "no reduce-scatter whose shapes were recorded (profile with record_shapes)"
    )
    assert found["nvlink_achieved_fraction"][0] is None


def test_an_exchange_beyond_the_host_is_compared_with_the_network() -> None:
    slow, fast = (measure(exchange=rate, ep=16, NCCL_IB_DISABLE="1", WORLD_SIZE="16") for rate in (90e9, 360e9))
    assert slow["nvlink_achieved_fraction"][0] is None
    assert slow["nccl_transport_disabled"] == (True, None)  # it reaches a fifth of the network's bandwidth
    assert fast["nccl_transport_disabled"] == (False, None)
