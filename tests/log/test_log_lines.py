"""Each kind of line: one that is read, one that looks alike and is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import ARGUMENTS, MEMORY_GB, MEMORY_MB, OOM, SUMMARY, iteration, read

from three_walls.log.training_log import OutOfMemory, StepTimeLine

MIB, GIB, GB = 2**20, 2**30, 10**9


def test_an_iteration_line_gives_its_values(tmp_path: Path) -> None:
    line = read(tmp_path, iteration(41, 20147.3, batch=1024, skipped=1)).iterations[0]
    assert (line.iteration, line.elapsed_ns, line.global_batch_size) == (41, 20_147_300_000, 1024)
    assert (line.tflops_per_gpu, line.loss_scale, line.skipped_count, line.nan_count) == (61.4, 1.0, 1, 0)
    assert (line.printed_at, line.file_name) == ("2026-07-25 10:11:12", "train.log")


@pytest.mark.parametrize(
    "alike",
    [
        "Evaluating iter 5/10",
        "iteration 5/10 done | loss: 3",
        " validation loss at iteration 10 | lm loss value: 7.6E+00 | ",
        "| consumed samples: 8 |",
    ],
)
def test_a_line_that_looks_like_an_iteration_is_none(tmp_path: Path, alike: str) -> None:
    log = read(tmp_path, alike)
    assert (log.iterations, log.torn_lines_count) == ((), 0)


@pytest.mark.parametrize("end", [80, 110, 130, 200, 330])
def test_a_torn_iteration_line_is_counted_and_not_guessed(tmp_path: Path, end: int) -> None:
    log = read(tmp_path, iteration(4, 377.0)[:end] + "[rank1]:W1121 a warning", iteration(5, 378.0))
    assert [line.iteration for line in log.iterations] == [5]
    assert log.torn_lines_count == 1


def test_the_step_time_line_of_bridge(tmp_path: Path) -> None:
    log = read(tmp_path, "Step Time : 20.15s GPU utilization: 312.4MODEL_TFLOP/s/GPU", "Step Time : soon")
    assert log.step_times == (StepTimeLine(20_150_000_000, 312.4, "train.log"),)


def test_memory_lines_of_both_frameworks(tmp_path: Path) -> None:
    bridge, megatron = read(tmp_path, MEMORY_MB, MEMORY_GB).memory
    assert (megatron.rank, megatron.max_allocated_bytes, megatron.max_reserved_bytes) == (3, 300.5 * MIB, 512 * MIB)
    assert megatron.allocator_retries_count is None
    assert (bridge.rank, bridge.max_allocated_bytes, bridge.reserved_bytes) == (0, 14.25 * GB, 15 * GB)
    assert bridge.allocator_retries_count == 2
    assert (bridge.after_iterations_count, megatron.after_iterations_count) == (2, 2)
    before_saving = MEMORY_MB.replace("(after 2 iterations)", "(before save_checkpoint for iteration 20)")
    assert read(tmp_path, before_saving).memory[0].after_iterations_count is None


def test_a_rank_that_prints_twice_keeps_its_largest_peak_and_last_current_value(tmp_path: Path) -> None:
    later = MEMORY_MB.replace("allocated: 100.00", "allocated: 90.00", 1).replace("300.50", "200.00")
    (memory,) = read(tmp_path, MEMORY_MB, later).memory
    assert (memory.allocated_bytes, memory.max_allocated_bytes) == (90 * MIB, 300.5 * MIB)


def test_a_memory_line_without_its_rank_is_none(tmp_path: Path) -> None:
    assert read(tmp_path, MEMORY_MB.removeprefix("[Rank 3] "), "memory (MB) | allocated: 3").memory == ()


def test_theoretical_memory_and_parameters(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "Theoretical memory footprints: weight and optimizer=100.00 MB, activation=20.50 MB, total=120.50 MB",
        "Total number of parameters in billions: 3.87",
        " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1152411648",
        " > number of parameters on (tensor, gtp_weight_remat, pipeline) model parallel rank (1, 0, 0): 1152411700",
        "Theoretical memory footprints not yet supported for hybrid Mamba-Transformer models.",
        "Number of parameters in most loaded shard in billions: 9.9999",
    )
    theory = log.theoretical_memory
    assert theory is not None
    assert (theory.weight_and_optimizer_bytes, theory.total_bytes) == (100 * MIB, 120.5 * MIB)
    assert (log.parameters_count, log.parameters_per_rank_count) == (3_870_000_000, 1_152_411_700)


def test_the_layout_of_both_frameworks(tmp_path: Path) -> None:
    megatron = read(
        tmp_path,
        "using world size: 16, data-parallel size: 4, context-parallel size: 1, hierarchical context-parallel sizes: "
        "None, tensor-model-parallel size: 2, pipeline-model-parallel size: 2",
    ).layout
    bridge = read(tmp_path, "> initialized HyperCommGrid with tp=2, pp=4, cp=1, dp=8", *SUMMARY).layout
    padded = read(tmp_path, " > padded vocab (size: 32001) with 127 dummy tokens (new size: 32128)").layout
    assert (padded.padded_vocab_size, bridge.padded_vocab_size) == (32_128, None)
    alike = read(tmp_path, "using world size of 16", "initialized model parallel with size 2").layout
    assert (megatron.world_size, megatron.data_parallel_size, megatron.pipeline_model_parallel_size) == (16, 4, 2)
    assert (bridge.tensor_model_parallel_size, bridge.expert_model_parallel_size) == (2, 8)
    assert alike.world_size is alike.tensor_model_parallel_size is None


def test_out_of_memory_of_new_and_old_releases(tmp_path: Path) -> None:
    old = (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.00 GiB total capacity; 77.00 GiB "
        "already allocated; 10.00 MiB free; 78.00 GiB reserved in total by PyTorch)"
    )
    new_report, old_report = read(tmp_path, OOM, OOM, old, "we ran out of memory").ooms
    assert new_report == OutOfMemory(1.5 * GIB, 3, 79 * GIB, 512 * MIB, 69 * GIB, 2 * GIB, 5 * GIB)
    assert old_report == OutOfMemory(20 * MIB, 0, 79 * GIB, 10 * MIB, 77 * GIB)


@pytest.mark.parametrize(
    ("line", "kind", "number"),
    [
        ("[before the start of training step] datetime: 2026-11-21 03:37:24.400380 ", "training_start", None),
        ("Starting training loop at iteration 0", "training_start", 0),
        ("[after training is done] datetime: 2026-11-21 03:37:44.960902 ", "training_end", None),
        ("[exiting program at iteration 12] datetime: 2026-11-21 03:37:44 ", "training_end", 12),
        (" validation loss at iteration 4 | lm loss value: 7.659142E+00 | ", "evaluation", 4),
        ("[2026-11-21 03:37:44.96] saving checkpoint at iteration      10 to /secret in torch_dist", "checkpoint", 10),
        ("  successfully saved checkpoint from iteration      10 to /secret", "checkpoint_saved", 10),
        ("DeepEP is only applicable to Ampere, Hopper, and Blackwell (only B200 and B300) GPUs.", "dispatcher", None),
        ("ImportError: HybridEP is not installed. Please install HybridEP package from", "dispatcher", None),
        ("Disabling tensor parallel communication overlap due to TP size < 2.", "overlap", None),
        ("Key 'a.b' in overrides not found in config object ConfigContainer. Skipping.", "override_skipped", None),
        ("TECudaGraphHelper: No graphable layers found. Skipping CUDA graph capture.", "cuda_graphs", None),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "failure", None),
        ("torch.AcceleratorError: CUDA error: out of memory", "memory_exhausted", None),
        ("/secret/alloc.h:240 NCCL WARN Cuda failure 2 'out of memory'", "memory_exhausted", None),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "memory_exhausted", None),
        ("Saved memory snapshot to /secret/snapshot.pickle", "memory_snapshot", None),
        ("INFO:megatron.bridge:[OOM] rank 3 saved memory snapshot to /secret/s.pickle", "memory_snapshot", None),
    ],
)
def test_events(tmp_path: Path, line: str, kind: str, number: int | None) -> None:
    (event,) = read(tmp_path, line, f"[default3]:{line}").events
    assert (event.kind, event.iteration, event.count) == (kind, number, 2)
    assert "/secret" not in event.text


@pytest.mark.parametrize(
    "alike",
    [
        "Starting training loop at iteration soon",
        "training is done",
        "saving checkpoint to /x",
        "DeepEP is great",
        "Key 'a' not found in config object X",
        "graphable layers are fine",
        "validation loss at iterations",
        "memory snapshot to come",
        "Cuda failure 999 'unknown error'",
        "STATUS_ALLOC_FAILED",
    ],
)
def test_lines_that_look_like_events_are_none(tmp_path: Path, alike: str) -> None:
    assert read(tmp_path, alike).events == ()


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ("{StragglerId(rank=11, node='host-7'), StragglerId(rank=3, node='host-7')}", "ranks 3, 11"),
        ("{5}", "ranks 5"),
        ("host-7", "ranks not stated"),
    ],
)
def test_slow_gpus_are_named_by_rank_and_never_by_host(tmp_path: Path, ranks: str, named: str) -> None:
    line = "WARNING:nvrx:STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: "
    (event,) = read(tmp_path, line + ranks, "STRAGGLER DETECTION WARNING").events
    assert (event.kind, event.text) == ("straggler", f"some GPUs have worse relative performance: {named}")


def test_the_frame_that_asked_for_too_much_memory(tmp_path: Path) -> None:
    def frame(file: str, function: str) -> str:
        return f'[rank3]:   File "/home/me/{file}", line 12, in {function}'

    log = read(
        tmp_path,
        "[rank3]: Stack (most recent call first):",
        frame("megatron/core/warned.py", "warn"),
        "[rank3]: Traceback (most recent call last):",
        frame("megatron/training/training.py", "train_step"),
        "[rank1]: Traceback (most recent call last):",
        frame("lm/megatron/core/optimizer/optimizer.py", "step"),
        "[rank3]:     self.optimizer.step()",
        frame("torch/optim/adam.py", "step"),
        OOM,
        OOM.replace("1.50 GiB", "2.50 GiB"),
    )
    assert [oom.raised_in for oom in log.ooms] == ["megatron/core/optimizer/optimizer.py: step", ""]


def test_memory_of_the_whole_device_where_it_is_printed(tmp_path: Path) -> None:
    (memory,) = read(tmp_path, f"{MEMORY_MB} | total device memory used: 640.00").memory
    assert (memory.device_bytes, memory.max_reserved_bytes) == (640 * MIB, 512 * MIB)


@pytest.mark.slow
@pytest.mark.parametrize("line", [MEMORY_MB, MEMORY_GB])
def test_a_memory_line_cut_anywhere_gives_no_other_peak(tmp_path: Path, line: str) -> None:
    (whole,) = read(tmp_path, line).memory
    for end in range(len(line)):
        for memory in read(tmp_path, line[:end]).memory:
            assert memory.max_allocated_bytes == whole.max_allocated_bytes
            assert memory.max_reserved_bytes in (None, whole.max_reserved_bytes)


def test_versions_are_read_where_a_line_states_them(tmp_path: Path) -> None:
    log = read(tmp_path, "PyTorch Version 2.7.0a0+79aa174", "megatron-core==0.16.1", "needs torch==2.1 or so")
    assert log.versions == (("megatron_core", "0.16.1"), ("torch", "2.7.0a0+79aa174"))


DDP = (
    "Setting up DistributedDataParallel with config DistributedDataParallelConfig(overlap_grad_reduce=True, "
    "bucket_size="
)
ADAM = "Setting up optimizer with config AdamOptimizerConfig(lr=0.0001, timers=<a.B object at 0x7f>, betas=(0.9, 0.95))"


def test_the_objects_that_megatron_core_sets_up_are_kept_raw(tmp_path: Path) -> None:
    log = read(tmp_path, f"INFO:megatron.core.distributed:{DDP}None, x='a, b', y=[1, 2])", f"{DDP}7)", f"INFO:a:{ADAM}")
    assert log.config_objects == (
        ("ddp.overlap_grad_reduce", "True"),
        ("ddp.bucket_size", "None"),
        ("ddp.x", "'a, b'"),
        ("ddp.y", "[1, 2]"),
        ("optimizer.lr", "0.0001"),
        ("optimizer.timers", "<a.B object at 0x7f>"),
        ("optimizer.betas", "(0.9, 0.95)"),
    )


@pytest.mark.parametrize("torn", [DDP, DDP + "1", ADAM[:-1], ADAM[: ADAM.index("(")], ADAM + "W1121 a warning"])
def test_a_torn_object_is_none(tmp_path: Path, torn: str) -> None:
    assert read(tmp_path, torn).config_objects == ()


def test_the_argument_block_is_kept_raw(tmp_path: Path) -> None:
    log = read(tmp_path, "  before_it ....................................... 1", *ARGUMENTS, "  after_it ... 2")
    assert log.argument_block[0] == ("tensor_model_parallel_size", "2")
    assert ("cuda_graph_scope", "[<CudaGraphScope.attn: 1>, 'x']") in log.argument_block
    assert ("inference_dynamic_batching_cuda_graph_max_tokens", "16384") in log.argument_block
    assert len(log.argument_block) == len(ARGUMENTS) - 2
    assert log.layout.expert_model_parallel_size == 4


def test_the_summary_of_bridge_names_its_sections(tmp_path: Path) -> None:
    assert read(tmp_path, *SUMMARY).non_default_settings == (
        ("model.core_class", "TransformerConfig"),
        ("model.num_layers", "48"),
        ("model.expert_model_parallel_size", "8"),
        ("train.micro_batch_size", "2"),
    )


@pytest.mark.parametrize("opener", ["INFO:__main__:Final configuration:", None])
def test_the_yaml_dump_of_bridge_is_kept_as_it_is(tmp_path: Path, opener: str | None) -> None:
    dump = [
        "_target_: megatron.bridge.training.config.ConfigContainer",
        "comm_overlap: null",
        "model:",
        "  num_layers: 48",
        "  recompute_modules:",
        "  - core_attn",
    ]
    lines = [f"[default0]:{line}" for line in ([opener] if opener else []) + dump]
    log = read(tmp_path, *lines, "[default1]:model:", "[default0]:----------------------------------")
    assert log.config_dump == "".join(f"{line}\n" for line in dump)
    assert read(tmp_path, "Final configuration: none", "model:").config_dump is None
