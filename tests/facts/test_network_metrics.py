"""What the network adapters of the host carried while communication was exposed."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import ADAM, ALL_GATHER, GEMM, TraceBuilder

from three_walls import analyze
from three_walls.lib.fact import FactSheet
from three_walls.trace.hardware_samples import read_nic_samples

pytestmark = pytest.mark.slow

MS = 1_000_000
BYTES, FRACTION = "exposed_network_send_bytes_per_s", "exposed_network_send_fraction"
GB_PER_MS = 1_000_000  # of 1 GB/s


def steps(ranks: str = "8", **variables: str) -> TraceBuilder:
    """Three steps of 10 ms: a GEMM for 5 ms, communication for 4, the optimizer for 1."""
    launcher = {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": ranks}
    builder = TraceBuilder().launched_as("train.py", **launcher, **variables)
    for at in range(MS, 31 * MS, 10 * MS):
        builder.kernel(GEMM, at, at + 5 * MS).kernel(ALL_GATHER, at + 5 * MS, at + 9 * MS)
        builder.kernel(ADAM, at + 9 * MS, at + 10 * MS)
    return builder


def facts_of(folder: Path, builder: TraceBuilder) -> FactSheet:
    return analyze(builder.write(folder / "trace.sqlite")).facts


def test_all_adapters_of_the_host_while_communication_is_exposed(tmp_path: Path) -> None:
    rates = [9 * GB_PER_MS] * 5 + [100 * GB_PER_MS, 300 * GB_PER_MS, 0, 0] + [9 * GB_PER_MS]
    builder = steps().sent(rates * 3, MS, MS)
    facts = facts_of(tmp_path, builder.sent([20 * GB_PER_MS] * 30, MS, MS, nic=1))
    assert facts.number(BYTES) == pytest.approx(120e9)
    assert facts.number(FRACTION) == pytest.approx(120 / 400)  # eight adapters of 50 GB/s


def test_what_adapters_carry_that_the_vendors_servers_do_not_have_is_not_known(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, steps(FI_PROVIDER="efa").sent([20 * GB_PER_MS] * 30, MS, MS))
    assert facts.number(BYTES) == pytest.approx(20e9)
    assert "what EFA adapters carry" in (facts.get(FRACTION).missing_reason or "")


def test_traffic_that_two_counters_of_a_port_hold_counts_once(tmp_path: Path) -> None:
    builder = steps().sent([80 * GB_PER_MS] * 30, MS, MS)
    facts = facts_of(tmp_path, builder.sent([90 * GB_PER_MS] * 30, MS, MS, name="Eth: Bytes sent"))
    assert facts.number(BYTES) == pytest.approx(90e9)


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        ({}, "no table NET_NIC_METRIC"),
        ({"name": "IB: Packets sent"}, "no rate of bytes that a network adapter sent was sampled"),
        ({"unit": "bytes"}, "no rate of bytes that a network adapter sent was sampled"),
        ({"period": 20 * MS}, "the network adapters were sampled too rarely"),
    ],
)
def test_what_was_not_sampled_or_has_another_unit_is_not_known(
    tmp_path: Path, metric: dict[str, object], reason: str
) -> None:
    builder = steps()
    if metric:
        builder.sent([GB_PER_MS] * 30, MS, **({"period": MS} | metric))  # type: ignore[arg-type]
    facts = facts_of(tmp_path, builder)
    for name in (BYTES, FRACTION):
        assert str(facts.get(name).missing_reason).startswith(reason)


def test_only_samples_of_the_time_are_read(tmp_path: Path) -> None:
    path = steps().sent([1, 2, 3, 4], 0, MS).write(tmp_path / "trace.sqlite")
    assert read_nic_samples(path, 1_500_000, 2_500_000)["send_bytes_per_s"].to_list() == [2_000, 3_000]
