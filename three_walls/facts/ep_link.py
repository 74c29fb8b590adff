"""The link that bounds a token exchange: NVLink inside one domain, the network where the group reaches beyond it."""

from __future__ import annotations

from three_walls.model.config import RunConfig
from three_walls.model.fact import FactValue
from three_walls.tables.hardware import GpuModel

GPUS_OF_A_SERVER = 8
"""An NVLink domain of at most so many GPUs is one server: ranks on two of them have no NVLink in between."""


def ep_link_bytes_per_s(
    config: RunConfig, gpu: GpuModel | None, layout: dict[str, tuple[FactValue, str | None]]
) -> tuple[float | None, str | None]:
    """(bytes per second that a rank can send to the others of its group at most, None), or (None, why not known).

    Across domains only the share for GPUs outside the own one crosses the network: with routing balanced that is
    (ranks - own) / (ranks - 1), and the network's bandwidth over that share bounds the whole exchange.
    """
    if gpu is None:
        return None, "the GPU is not known"
    within, spans = layout["ep_within_nvlink_domain"][0], layout["ep_spans_nodes"][0]
    if not isinstance(within, bool):
        return None, layout["ep_within_nvlink_domain"][1]
    domain, nvlink = gpu.nvlink_domain_gpus, gpu.nvlink_bytes_per_s_one_way
    if domain is None or nvlink is None:
        return None, f"how many {gpu.family} NVLink joins differs from board to board"
    is_server = domain <= GPUS_OF_A_SERVER
    if within and not (is_server and spans is True):
        return float(nvlink), None
    if gpu.nic_bytes_per_s_one_way is None:
        return None, f"the network of a {gpu.family} server is not in tables/hardware.yaml"
    if config.get("moe_token_dispatcher_type") != "alltoall":
        return None, "across servers the share of the network is known for the alltoall dispatcher only"
    ranks = config.whole_number("expert_model_parallel_size")
    etp = config.whole_number("expert_tensor_parallel_size") or config.whole_number("tensor_model_parallel_size")
    if not ranks or etp != 1:
        return None, "across servers the share of the network is known for expert tensor parallelism 1 only"
    per_node = layout["gpus_per_node"][0]
    own = per_node if is_server and isinstance(per_node, int) else domain
    return gpu.nic_bytes_per_s_one_way * (ranks - 1) / (ranks - own), None
