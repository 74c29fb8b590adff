"""The forms of environment variables: what real runs set passes, what could be a secret does not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.paths import SAMPLES
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.bridge.tuned_recipes import tuned_recipes
from three_walls.capture.scrub.texts import is_public_variable
from three_walls.facts.sheet import DEFINITIONS
from three_walls.facts.transport import nccl_transport
from three_walls.tables.environment_variables import allowed_variables
from three_walls.trace.launch_record import launch_environment, unquote
from three_walls.trace.nsys_export import NsysExport
from three_walls.trace.trace_files import plain_sqlite

pytestmark = pytest.mark.slow

# Values out of the documentation of each library, and what Megatron-LM and Megatron-Bridge set in their launch scripts.
REAL = {
    "CUDA_DEVICE_MAX_CONNECTIONS": ["1", "32"],
    "CUDA_DEVICE_ORDER": ["PCI_BUS_ID"],
    "CUDA_MODULE_LOADING": ["LAZY"],
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": ["12.5"],
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ["0=1G,1=2G"],
    "CUDA_SCALE_LAUNCH_QUEUES": ["4x", "0.25x"],
    "CUDA_VERSION": ["13.0.2"],
    "CUDA_VISIBLE_DEVICES": [
        "0,1,2,3",
        "-1",
        "",
        "NoDevFiles",
        "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-8932f937",
        "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",
        "MIG-8932f937-d72c-4106-c12f-20bd9faed9f6",
    ],
    "CUBLAS_VERSION": ["13.0.2.14"],
    "CUBLAS_WORKSPACE_CONFIG": [":4096:8", ":4096:2:16:8"],
    "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT": ["0"],
    "CUDNN_LOGDEST_DBG": ["stdout"],
    "DEEP_EP_DEVICE_TO_HCA_MAPPING": ["0:rocep145s0:1,1:rocep146s0:1", "0:mlx5_0:1"],
    "MALLOC_CONF": ["background_thread:true,metadata_thp:auto,dirty_decay_ms:30000,muzzy_decay_ms:-1"],
    "NCCL_ALGO": [
        "Ring",
        "^NVLS",
        "ring,collnetdirect",
        "allreduce:tree,collnetchain;broadcast:ring",
        "allreduce:^tree,collnetchain,pat",
    ],
    "NCCL_BUFFSIZE": ["4194304", "0x400000"],
    "NCCL_CTA_POLICY": ["1", "EFFICIENCY|ZERO"],
    "NCCL_DEBUG": ["INFO", "warn", "VERSION"],
    "NCCL_DEBUG_SUBSYS": ["INIT,COLL", "^NET"],
    "NCCL_GRAPH_MIXING_SUPPORT": ["-2147483648"],
    "NCCL_IB_GID_INDEX": ["-1"],
    "NCCL_IB_HCA": [
        "mlx5_0:1,mlx5_1:1",
        "^mlx5_0",
        "=mlx5_0:1:2:3",
        "mlx5",
        "mlx5_bond_0",
        "bnxt_re0",
        "ibp5s0f0",
        "rdmap16s27",
    ],
    "NCCL_NET": ["IB", "Socket", "AWS Libfabric", "IBext_v8"],
    "NCCL_NET_GDR_LEVEL": ["PHB", "2"],
    "NCCL_NET_PLUGIN": ["none", "spcx", "aws-ofi", "libnccl-net.so"],
    "NCCL_P2P_LEVEL": ["NVL", "SYS"],
    "NCCL_PROTO": ["Simple", "LL128", "^LL"],
    "NCCL_SOCKET_IFNAME": [
        "eth0",
        "=eth0",
        "^docker0,lo",
        "ens",
        "enp5s0f0np0",
        "bond0.100",
        "eno1,eno2",
        "^=lo",
        "enp0s31f6",
        "ib0",
        "hsn0",
        "gpu0rdma0",
    ],
    "NCCL_SYM_KERNEL": ["AllReduce_RSxLDMC_AGxSTMC", "^"],
    "NCCL_THREAD_THRESHOLDS": ["8 -2 16"],
    "NCCL_TUNER_PLUGIN": ["libnccl-ofi-tuner.so", "none"],
    "NCCL_VERSION": ["2.28.3-1"],
    "NVSHMEM_HCA_PE_MAPPING": ["mlx5_0:1:2,mlx5_0:2:2"],
    "NVSHMEM_IB_ENABLE_IBGDA": ["true", "1"],
    "NVSHMEM_NVTX": ["init,coll"],
    "NVSHMEM_SYMMETRIC_SIZE": ["1G", "3.1M", "20m"],
    "NVTE_CUDA_ARCHS": ["80;90a", "100f"],
    "NVTE_DPA_FP8_RECIPE": ["DelayedScaling"],
    "NVTE_FLASH_ATTN": ["0"],
    "OMP_NUM_THREADS": ["1", "4,3,2"],
    "PYTORCH_CUDA_ALLOC_CONF": [
        "expandable_segments:True",
        "expandable_segments:True,graph_capture_record_stream_reuse:True",
        "max_split_size_mb:512, garbage_collection_threshold:0.8",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],backend:native",
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
        "expandable_segments:True,release_lock_on_cudamalloc:True",
    ],
    "TORCH_NCCL_AVOID_RECORD_STREAMS": ["1", "true"],
    "UB_TIMEOUT": ["720"],
}

SECRETS = [
    "hunter2",
    "alice",
    "my-cluster-07",
    "/home/alice/topo.xml",
    "10.0.0.1:29500",
    "hf_AbCdEfGhIjKlMnOpQrStUv",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "sk-abcdefgh12345678",
    "AKIAIOSFODNN7EXAMPLE",
    "0a1b2c3d4e5f60718293",
    "enx78e7d1ea46da",
    "1234567890123456",
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REAL.items() for value in values])
def test_what_real_runs_set_is_shown(name: str, value: str) -> None:
    assert allowed_variables().shows(name, value)


@pytest.mark.parametrize("secret", SECRETS)
def test_no_variable_shows_what_could_be_a_secret(secret: str) -> None:
    families = ["NCCL_X", "TORCH_NCCL_X", "NVTE_X", "NVSHMEM_X", "DEEP_EP_X", "HYBRID_EP_X", "CUDNN_X", "CUBLAS_X"]
    names = [*allowed_variables().names, *families]
    assert [name for name in names if allowed_variables().shows(name, secret)] == []


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "NCCL_ALGO", "PYTORCH_CUDA_ALLOC_CONF"])
def test_a_list_is_shown_only_if_every_element_may_be(name: str, secret: str) -> None:
    first = REAL[name][0]
    assert allowed_variables().shows(name, f"{first},{first}")
    assert not allowed_variables().shows(name, f"{first},{secret}")


@pytest.mark.parametrize("name", ["NCCL_TOPO_FILE", "NCCL_HOSTID", "NCCL_COMM_ID", "CUDA_MPS_PIPE_DIRECTORY"])
def test_of_paths_and_addresses_only_that_they_are_set_may_be_said(name: str) -> None:
    assert allowed_variables().allows(name)
    assert not allowed_variables().shows(name, "1")


def test_every_environment_of_the_samples_passes_whole() -> None:
    seen, refused = 0, []
    for path in sorted(SAMPLES.rglob("*.sqlite*")):
        with plain_sqlite(path) as plain, NsysExport(plain, path) as export:
            for row in launch_environment(export):
                name, _, value = row.partition("=")
                if allowed_variables().allows(name):
                    seen += 1
                    refused += [] if allowed_variables().shows(name, unquote(value)) else [row]
    assert (seen > 300, refused) == (True, [])


def test_every_environment_of_nvidias_recipes_passes_whole() -> None:
    rows = {(name, value) for recipe in tuned_recipes() for name, value in recipe.environment.items()}
    assert len(rows) > 20
    assert [row for row in sorted(rows) if not allowed_variables().shows(*row)] == []


def test_what_the_rules_set_may_be_shown() -> None:
    edits = [
        edit
        for rule in load_rule_base(DEFINITIONS).rules
        for edit in rule.edits
        if edit.kind == "env" and isinstance(edit.to, str | int)  # not the value of a fact
    ]
    assert edits
    assert [edit for edit in edits if not allowed_variables().shows(edit.key, str(edit.to))] == []


def test_what_the_rules_set_or_nccl_is_kept_from_by_stays_in_a_scrubbed_capture() -> None:
    rules = load_rule_base(DEFINITIONS).rules
    names = {edit.key for rule in rules for edit in rule.edits if edit.kind == "env"}
    names |= {choice.variable for choice in (*nccl_transport().disabling, *nccl_transport().forcing)}
    assert "NCCL_P2P_DISABLE" in names
    assert [name for name in sorted(names) if not is_public_variable(name)] == []


@given(st.sampled_from(sorted(REAL)), st.text(max_size=40))
def test_any_text_is_judged_without_failing(name: str, text: str) -> None:
    allowed_variables().shows(name, text)


@pytest.mark.parametrize(
    "text", ["enp5s0," * 140 + "!", "mlx5_0:1," * 110 + "?", ":4096:8" * 140 + "x", "0" * 1000 + "x"]
)
def test_long_hostile_values_cost_nothing(text: str) -> None:
    began = time.perf_counter()
    for name in allowed_variables().names:
        assert not allowed_variables().shows(name, text)
    assert time.perf_counter() - began < 2.0  # a form that tries every split would take years
