"""The glossary: every fact's name, unit and definition. A fact without an entry here does not exist.

Facts named ``config.<key>`` (keys of ``tables/config-keys.yaml``) and ``env.<VARIABLE>`` are the run's
settings and need no entry. Unless an entry says otherwise a time is that of the *representative step*:
the median kept step of the rank that waited least for its peers.
"""

from __future__ import annotations

from three_walls.model.fact import FactDefinition

_LAUNCHES = ("api_calls", "launch_correlation", "inside_cuda_graphs")
"""What every statement about the host needs: launches, joined to what they launched, and no hidden ones."""

_DEVICE = ("cuda_graph_activity",)
"""What every statement about an idle device needs: graphs that run are seen to run, inside or as a whole."""


def _ns(name: str, meaning: str, not_the_same_as: str = "", needs: tuple[str, ...] = ()) -> FactDefinition:
    return FactDefinition(name, "ns", meaning, not_the_same_as, needs=needs)


def _share(name: str, of: str, meaning: str) -> FactDefinition:
    return FactDefinition(name, "fraction", meaning, numerator=of, denominator="step_ns")


def _unfused(work: str, meaning: str) -> tuple[FactDefinition, ...]:
    """Time of ``work`` on the device, launch-starved on the host, and of both; told by operators around launches."""
    return (
        _ns(f"{work}_kernels_ns", f"{meaning} Only while nothing else computes.", needs=_LAUNCHES),
        _ns(
            f"{work}_launch_starved_ns",
            "Launch-starved time that ends with one of those kernels; less, in proportion, what the profiler is taken "
            "to have added.",
            needs=_LAUNCHES,
        ),
        _ns(f"{work}_ns", f"Both: {work}_kernels_ns and {work}_launch_starved_ns.", needs=_LAUNCHES),
        _share(f"{work}_fraction", f"{work}_ns", "Share of the step in that."),
    )


GLOSSARY: tuple[FactDefinition, ...] = (
    _ns("step_ns", "Length of the representative step."),
    FactDefinition("step_spread_ratio", "ratio", "Longest over shortest kept step, all ranks."),
    FactDefinition("ranks_captured_count", "count", "Ranks (GPUs) whose kernels are in the traces given."),
    FactDefinition("kernel_count", "count", "Kernels that ran in the step."),
    _ns("device_busy_ns", "Union of everything on the device: kernels, copies, memsets, graph envelopes."),
    _ns("compute_busy_ns", "Union of the compute kernels.", "The sum of their durations."),
    _share("compute_busy_fraction", "compute_busy_ns", "Share of the step in which some compute kernel runs."),
    _ns("idle_ns", "Nothing runs on the device: step - device busy.", needs=_DEVICE),
    _ns("ep_busy_ns", "Union of expert-parallel communication: all-to-all, dispatch, combine, notify."),
    _ns(
        "ep_exposed_ns",
        "Expert-parallel communication while no compute kernel runs.",
        "Blocking time: exposed communication may delay nobody. Nor transfer time: part of it is waiting for peers.",
    ),
    _share("ep_exposed_fraction", "ep_exposed_ns", "Share of the step in which EP communication runs alone."),
    _ns("ep_hidden_ns", "Expert-parallel communication while some compute kernel runs."),
    FactDefinition(
        "ep_hidden_of_busy_fraction",
        "fraction",
        "Share of expert-parallel communication that computing hides.",
        numerator="ep_hidden_ns",
        denominator="ep_busy_ns",
    ),
    _ns(
        "ep_transfer_exposed_ns",
        "Exposed EP time without waiting for peers: from the last member's arrival to the call's end where all ranks "
        "of the group were captured; else each call counts at most what the fastest tenth of the token-carrying calls "
        "of its kind on this rank took.",
        "From one rank's durations, a measured transfer time: that proxy is low when message sizes vary.",
    ),
    _share("ep_transfer_exposed_fraction", "ep_transfer_exposed_ns", "Share of the step in exposed EP transfer."),
    _ns("ep_wait_exposed_ns", "Exposed EP time beyond its transfer: waiting for peers to arrive."),
    _ns("collective_busy_ns", "Union of all other communication (data, tensor, pipeline, context parallel)."),
    _ns("collective_exposed_ns", "Other communication while no compute kernel runs."),
    _share("collective_exposed_fraction", "collective_exposed_ns", "Share of the step in other exposed communication."),
    _ns(
        "collective_transfer_exposed_ns",
        "Exposed other communication without waiting for peers; told as for ep_transfer_exposed_ns.",
    ),
    _ns("collective_wait_exposed_ns", "Exposed other communication beyond that: waiting for peers."),
    _ns(
        "dp_exposed_ns",
        "Exposed transfer of data parallelism: parameters and gradients. Collectives of unknown owner are not in it.",
    ),
    _share("dp_exposed_fraction", "dp_exposed_ns", "Share of the step in exposed parameter and gradient transfer."),
    _ns("tp_exposed_ns", "Exposed transfer of tensor and sequence parallelism."),
    _share("tp_exposed_fraction", "tp_exposed_ns", "Share of the step in exposed tensor-parallel transfer."),
    _ns("cp_exposed_ns", "Exposed transfer of context parallelism's ring; its other exchanges are not in it."),
    _share("cp_exposed_fraction", "cp_exposed_ns", "Share of the step in exposed context-parallel ring transfer."),
    _ns("wait_exposed_ns", "Exposed communication that is waiting for peers, all classes."),
    _share("wait_exposed_fraction", "wait_exposed_ns", "Share of the step spent waiting for peers."),
    _ns(
        "offload_copy_exposed_ns",
        "Host-to-device and device-to-host copies with nothing else running.",
        needs=("copies",),
    ),
    _share("offload_copy_exposed_fraction", "offload_copy_exposed_ns", "Share of the step in exposed host copies."),
    _ns(
        "launch_starved_ns",
        "Device idle, next operation not launched, its thread not in a synchronizing call.",
        needs=_LAUNCHES,
    ),
    _ns(
        "host_blocked_ns",
        "Device idle, next operation not launched, its thread in a synchronizing call.",
        needs=_LAUNCHES,
    ),
    _ns("host_idle_ns", "Launch-starved plus host-blocked: the device waited for the host.", needs=_LAUNCHES),
    _share("host_idle_fraction", "host_idle_ns", "Share of the step in which the device waited for the host."),
    _share("launch_starved_fraction", "launch_starved_ns", "Share of the step that is launch-starved."),
    _share("host_blocked_fraction", "host_blocked_ns", "Share of the step that is host-blocked."),
    _ns(
        "optimizer_launch_starved_ns",
        "Launch-starved time from the first to the last optimizer kernel after the step's last GEMM.",
        needs=_LAUNCHES,
    ),
    _share(
        "optimizer_launch_starved_fraction",
        "optimizer_launch_starved_ns",
        "Share of the step in which the optimizer is launch-starved.",
    ),
    FactDefinition(
        "graph_kernel_fraction",
        "fraction",
        "Share of the step's kernels that ran inside CUDA graphs.",
        needs=("graph_nodes", "inside_cuda_graphs"),
    ),
    _ns(
        "idle_other_ns",
        "Device idle after the next operation's launch began, or with no launch recorded.",
        needs=_DEVICE,
    ),
    _share("idle_other_fraction", "idle_other_ns", "Share of the step that is idle for no known reason."),
    _ns("cuda_graph_ns", "Inside CUDA-graph envelopes whose kernels were not recorded."),
    _share("cuda_graph_fraction", "cuda_graph_ns", "Share of the step inside unrecorded CUDA graphs."),
    _ns("attention_unfused_ns", "Softmax, masks, scales and copies of scores of unfused attention."),
    _share(
        "attention_unfused_fraction", "attention_unfused_ns", "Share of the step in unfused attention's pointwise work."
    ),
    _ns("attention_ns", "Fused attention kernels."),
    _ns("gemm_ns", "GEMMs, grouped or not."),
    _share("gemm_fraction", "gemm_ns", "Share of the step in GEMMs."),
    _ns("permute_ns", "Gathering, scattering and permuting of tokens; small lookups of the same kernels too."),
    _share("permute_fraction", "permute_ns", "Share of the step in permuting tokens."),
    _ns("elementwise_ns", "Pointwise and reduction kernels: activations, rotary embedding, loss, sums."),
    _share("elementwise_fraction", "elementwise_ns", "Share of the step in pointwise kernels."),
    *_unfused(
        "rope", "Pointwise kernels on tensors of queries' or keys' size: the unfused rotary embedding, and copies."
    ),
    *_unfused("loss", "Pointwise kernels of the unfused loss, forward and backward."),
    *_unfused("wgrad_accumulation", "Adding the gradient of each weight to the gradient buffer, after its product."),
    *_unfused("router_topk", "Kernels on scores and maps of the experts: their choice and the balancing loss."),
    *_unfused("bias_dropout_add", "Additions, dropout and scales on hidden states: the unfused residual path."),
    _ns("barrier_exposed_ns", "Barriers of ranks (sums of one element) while no compute kernel runs.", needs=_LAUNCHES),
    FactDefinition(
        "gemm_shapes_known_fraction",
        "fraction",
        "Share of the GEMMs' time whose sizes the operators around their launches say.",
    ),
    _ns("unclassified_ns", "Kernels that match no pattern."),
    _share("unclassified_fraction", "unclassified_ns", "Share of the step in kernels that match no pattern."),
    FactDefinition(
        "attention_forward_per_backward_ratio",
        "ratio",
        "Attention forward passes per backward pass: 1 without recompute, 2 when attention is computed twice.",
    ),
    _ns(
        "recompute_ns",
        "Forward work replayed in the backward pass: from each replay's first kernel to its backward's; where kernels "
        "do not show that, replayed layers times the median spacing of forward layers.",
        "Busy time: waiting and idle time inside a replay counts, for it goes when the replay goes.",
    ),
    _share("recompute_fraction", "recompute_ns", "Share of the step spent on recomputing."),
    _ns(
        "memory_recoverable_ns",
        "Ceiling of what more memory would give back: recompute (where it can be priced) and exposed host copies.",
    ),
    _ns(
        "communication_recoverable_ns", "Ceiling of what communication edits give back: exposed transfer, all classes."
    ),
    _ns("compute_recoverable_ns", "Ceiling of what compute edits give back: pointwise work of unfused attention."),
    _ns(
        "host_recoverable_ns",
        "Ceiling of what host edits give back: launch-starved and host-blocked time, less profiler_excess_ns where a "
        "log was given (at least 0).",
        "A measured share: which part of the step the profiler lengthened is assumed, not seen.",
        needs=_LAUNCHES,
    ),
    _ns(
        "launch_starved_recoverable_ns",
        "Launch-starved time less profiler_excess_ns where a log was given (at least 0): the profiler slows every "
        "launch, so what it added to the step is taken to lie here first.",
        needs=_LAUNCHES,
    ),
    _share(
        "launch_starved_recoverable_fraction",
        "launch_starved_recoverable_ns",
        "Share of the step that is launch-starved and not taken to be the profiler's.",
    ),
    _ns("unprofiled_step_ns", "Median of the log's steady iterations outside of the profiler's range."),
    FactDefinition("unprofiled_step_spread_ratio", "ratio", "Longest over shortest of those iterations."),
    _ns(
        "unprofiled_step_range_ns",
        "Longest less shortest of those iterations.",
        "Time of one step: it is what differs between steps, in none of which a constant part shows.",
    ),
    FactDefinition("unprofiled_steps_count", "count", "How many of them there are (lines of the log)."),
    _ns("traced_step_ns", "The representative step, as traced: what stands beside unprofiled_step_ns."),
    FactDefinition(
        "profiler_perturbation_ratio",
        "ratio",
        "Traced step over unprofiled step: how much longer the profiler made it.",
    ),
    _ns(
        "profiler_excess_ns",
        "Traced step less unprofiled step, where that is more than iterations differ by themselves; else 0.",
        "A part of the budget: which bucket it lies in is not measured.",
    ),
    FactDefinition(
        "log_deepep_unavailable",
        "flag",
        "The log says that DeepEP is not installed or does not run on this GPU.",
        "Proof that it is there: where the log says nothing the fact is missing.",
    ),
    FactDefinition("log_hybridep_unavailable", "flag", "The same of HybridEP."),
    FactDefinition(
        "log_unavailable_dispatchers",
        "text",
        "The dispatchers of which the log says so, by name; unset where it names none.",
    ),
    FactDefinition("log_tflops_per_gpu", "tflops", "Model TFLOP/s per GPU as the log prints it; median, unprofiled."),
    FactDefinition(
        "log_job_tflops_per_gpu",
        "tflops",
        "The same from the start of the last job to its last checkpoint, as the progress file has it.",
        "The speed of a step: start-up, evaluation and checkpoints count as time.",
    ),
    FactDefinition(
        "log_cumulative_tflops_per_gpu",
        "tflops",
        "The same since the first of the jobs with the run's number of GPUs started.",
        "The speed of a step or a job: the time between jobs counts too.",
    ),
    FactDefinition(
        "log_restarts_count",
        "count",
        "Jobs with the run's number of GPUs in the progress file, after the first.",
    ),
    FactDefinition("log_peak_memory_bytes", "bytes", "Largest peak of allocated memory, of the ranks that printed it."),
    FactDefinition("log_reserved_memory_bytes", "bytes", "Largest peak of reserved memory, of the same ranks."),
    FactDefinition(
        "log_memory_iterations_count",
        "count",
        "Iterations of the run before the log's last memory line: after one, gradients were never computed beside the "
        "optimizer's moments, which its first update creates.",
    ),
    FactDefinition("log_oom_count", "count", "Different reports of memory exhausted in the log."),
    FactDefinition(
        "log_allocator_retries_count",
        "count",
        "Allocations that failed at first, most of any rank: the allocator gave its cache back and tried again.",
    ),
    _ns("shared_expert_ns", "GEMMs of shared experts, all MoE layers of the step and all directions."),
    _ns(
        "expert_backward_gemm_ns",
        "GEMMs of routed experts in backward passes, all MoE layers of the step.",
    ),
    _ns(
        "dispatch_backward_exposed_ns",
        "Exposed exchange of what leaves the experts in backward passes (the backward pass of the dispatch), waiting "
        "included.",
    ),
    FactDefinition("moe_layers_count", "count", "MoE layers that could be told apart in the step."),
    FactDefinition(
        "ep_achieved_bytes_per_s",
        "bytes_per_s",
        "What a rank sends to other ranks in one dispatch or combine (from the config, routing balanced) over what the "
        "fastest tenth of the step's token exchanges took.",
        "Average throughput: exchanges that waited for peers are left out, unless nearly all did.",
    ),
    FactDefinition(
        "ep_link_bytes_per_s",
        "bytes_per_s",
        "What a rank can send to its expert-parallel group at most: NVLink's limit in one direction inside one domain; "
        "beyond it the network's per GPU over the share of an exchange that crosses it (routing balanced).",
    ),
    _ns(
        "overlap_slowdown_ns",
        "What GEMMs took longer beside communication than the same products alone: difference of the medians "
        "times the calls beside.",
        "A loss to avoid: it is the price of hiding communication, to be set against what is hidden.",
    ),
    _share("overlap_tax_fraction", "overlap_slowdown_ns", "Share of the step that the overlap tax is."),
    _ns(
        "pipeline_bubble_ns",
        "Nothing computes: waiting in pipeline exchanges for the neighbouring stage while no tokens are exchanged, and "
        "what passes from the end of the rank's last backward pass to that of the last stage of its pipeline.",
        "Exposed pipeline exchange: a stage that finishes early waits in the gradients' collectives.",
    ),
    _share("pipeline_bubble_fraction", "pipeline_bubble_ns", "Share of the step in the pipeline's bubble."),
    FactDefinition(
        "pipeline_bubble_expected_fraction",
        "fraction",
        "Share of the step that an even 1F1B schedule leaves idle: (p-1) / (m*v + p-1) for p stages, m micro-batches, "
        "v virtual stages per rank.",
        "A measured time: stages of unequal length and exchanges add to it.",
    ),
    _ns(
        "pipeline_bubble_excess_ns",
        "The pipeline's bubble beyond the one that an even 1F1B schedule leaves (at least 0): stages of unequal "
        "length, and exchanges.",
    ),
    _share("pipeline_bubble_excess_fraction", "pipeline_bubble_excess_ns", "Share of the step in that excess."),
    FactDefinition(
        "model_flops_per_step",
        "flops",
        "Floating point operations of the model in one step, all GPUs: three times the forward pass of its matrix "
        "products and of causal attention, from the config.",
        "What the GPUs run: recompute, and the masked half of unfused scores, are no model work.",
    ),
    FactDefinition(
        "megatron_flops_per_step",
        "flops",
        "The same as Megatron counts it for the TFLOP/s/GPU of its log: without the router.",
    ),
    FactDefinition("flops_per_gpu_step", "flops", "model_flops_per_step over the number of GPUs."),
    FactDefinition(
        "peak_flops_per_s",
        "flops_per_s",
        "The GPU's peak in dense GEMMs at the run's precision (tables/hardware.yaml).",
    ),
    FactDefinition(
        "mfu_fraction",
        "fraction",
        "Model FLOPs utilization of unprofiled steps: flops_per_gpu_step over the log's step time and the peak.",
        "Utilization across precisions: the peak is that of the run's precision, FP8 doubles it.",
    ),
    FactDefinition(
        "mfu_traced_fraction",
        "fraction",
        "The same for the representative step, as traced.",
        "Utilization of the run: profiling slows steps.",
    ),
    FactDefinition(
        "gemm_efficiency_fraction",
        "fraction",
        "What GEMMs reach of the GPU's peak while one runs: operations of the rank's layers (replays and "
        "unfused scores included) over the time of the gemm and grouped_gemm buckets.",
        "Utilization of the step: time without a GEMM does not count here.",
    ),
    FactDefinition(
        "expert_gemm_efficiency_fraction",
        "fraction",
        "The same for the experts' products, between dispatch and combine, routing taken to be balanced.",
    ),
    FactDefinition(
        "h2d_achieved_bytes_per_s",
        "bytes_per_s",
        "Bytes of the step's copies from the host of 1 MiB and more over the sum of their durations.",
        needs=("copies",),
    ),
    FactDefinition("d2h_achieved_bytes_per_s", "bytes_per_s", "The same for copies to the host.", needs=("copies",)),
    FactDefinition(
        "host_link_bytes_per_s",
        "bytes_per_s",
        "The link between GPU and host memory in one direction (PCIe, NVLink-C2C), before protocol overhead.",
    ),
    FactDefinition(
        "parameters_per_gpu_count", "count", "Parameters on a GPU of the fullest pipeline stage, from the config."
    ),
    FactDefinition("memory_parameters_bytes", "bytes", "Those parameters, in the precision of the model."),
    FactDefinition("memory_gradients_bytes", "bytes", "Their gradients, in the precision they are reduced in."),
    FactDefinition(
        "memory_optimizer_bytes",
        "bytes",
        "The optimizer's copy of the parameters and its moments on that GPU, sharded by the distributed optimizer.",
    ),
    FactDefinition(
        "memory_activations_bytes",
        "bytes",
        "Activations that wait for the backward pass at the peak, with the working set beside them, estimated from the "
        "config: in-flight micro-batches, recompute, unfused scores; routing taken to be balanced.",
        "A measurement: held against logs of unfused attention only, where it is within 3% of the peak.",
    ),
    FactDefinition(
        "memory_estimated_peak_bytes",
        "bytes",
        "Parameters, gradients, optimizer and activations of the fullest pipeline stage together.",
        "Memory in use: the allocator's fragments, NCCL's buffers and the CUDA context come on top.",
    ),
    FactDefinition(
        "memory_headroom_bytes",
        "bytes",
        "Device memory less the log's peak (memory_peak_bytes), or where no log printed one, less the estimated one.",
        "Memory that is free: see memory_estimated_peak_bytes for what neither figure holds.",
    ),
    FactDefinition(
        "memory_peak_bytes",
        "bytes",
        "The log's peak of allocated memory; with the optimizer's moments (estimated) added where the log prints "
        "memory after its first iteration alone.",
    ),
    FactDefinition("memory_peak_fraction", "fraction", "Share of the device memory that memory_peak_bytes takes."),
    FactDefinition(
        "driver_peak_bytes",
        "bytes",
        "Most device memory that the process held through the driver at once, of what the trace recorded.",
        "Memory in use by tensors: PyTorch keeps what it frees. Nor all that is held: what was allocated before the "
        "capture is listed incompletely, so it is a lower bound.",
        needs=("gpu_memory_usage",),
    ),
    FactDefinition(
        "driver_growth_in_steps_bytes",
        "bytes",
        "Device memory taken from the driver less what was given back, in all kept steps of the rank.",
        needs=("gpu_memory_usage",),
    ),
    FactDefinition(
        "allocator_calls_in_steps_count",
        "count",
        "Calls that take memory from the driver or give it back (cudaMalloc, cudaFree, ...), in all kept steps of the "
        "rank: a steady step needs none.",
        needs=("api_calls",),
    ),
    FactDefinition(
        "memory_pressure",
        "text",
        "How the log shows that device memory is short: out_of_memory, allocator_retries, near_limit (peak of "
        "allocated memory), fragmented (of reserved memory alone) or none; the first that holds. Limits: "
        "tables/log.yaml. Without a log none where no step called the driver's allocator.",
        "The share of memory in use: without a log a run near its limit counts as none.",
    ),
    FactDefinition(
        "memory_parameters_fraction",
        "fraction",
        "Share of the device memory that parameters take, from the config.",
        numerator="memory_parameters_bytes",
        denominator="gpu.memory_bytes",
    ),
    FactDefinition(
        "memory_optimizer_fraction",
        "fraction",
        "Share of the device memory that the optimizer's state takes, from the config.",
        numerator="memory_optimizer_bytes",
        denominator="gpu.memory_bytes",
    ),
    FactDefinition(
        "memory_activations_fraction",
        "fraction",
        "Share of the device memory that activations take at the peak, estimated from the config.",
        numerator="memory_activations_bytes",
        denominator="gpu.memory_bytes",
    ),
    FactDefinition(
        "memory_peak_without_recompute_ratio",
        "ratio",
        "The log's peak with the estimated activations exchanged for those without recompute, over device memory.",
        "A measured peak: above 1 such a run would not fit.",
    ),
    FactDefinition(
        "smaller_micro_batch_size", "count", "Largest proper divisor of the micro-batch size; missing where it is 1."
    ),
    FactDefinition(
        "larger_micro_batch_size",
        "count",
        "Twice the micro-batch size, where half as many micro-batches still fill the pipeline; else missing.",
    ),
    FactDefinition(
        "larger_expert_parallel_size",
        "count",
        "Twice the expert-parallel size, where experts and ranks can be split so; else missing.",
    ),
    _ns(
        "straggler_late_ns",
        "By how much per step the latest rank arrives after the last but one, where that is more than its peers do; 0 "
        "where no rank is late.",
        "The waiting of the others: several of them wait at once.",
    ),
    _share("straggler_late_fraction", "straggler_late_ns", "Share of the step by which the latest rank is late."),
    _ns(
        "straggler_late_recoverable_ns",
        "The same, less profiler_excess_ns where the rank is launch-starved and a log was given (at least 0): the "
        "profiler slows launches, and not on every rank alike.",
    ),
    _share(
        "straggler_late_recoverable_fraction",
        "straggler_late_recoverable_ns",
        "Share of the step by which the latest rank is late and that is not taken to be the profiler's.",
    ),
    FactDefinition(
        "straggler_cause",
        "text",
        "Why that rank is late: slow_compute, expert_imbalance, launch_starved, host_blocked, late_stage or unknown.",
    ),
    _ns(
        "capture_start_skew_ns",
        "From the first operation that the profiler recorded on the first rank to that on the last rank.",
    ),
    FactDefinition(
        "capture_start_skewed_steps_count",
        "count",
        "Kept steps, of all ranks, that began before every rank was captured: nothing is compared in them.",
    ),
    FactDefinition("num_microbatches", "count", "Micro-batches per step and rank: GBS / (MBS x data-parallel size)."),
    FactDefinition("world_size", "count", "Ranks of the run (WORLD_SIZE, or as its log or config says)."),
    FactDefinition("nodes_count", "count", "Hosts of the run: world size / ranks on one host, rounded up."),
    FactDefinition("ranks_per_nvlink_domain_count", "count", "Ranks of the run that one NVLink domain joins."),
    FactDefinition("data_parallel_size", "count", "World size / (TP x PP x CP)."),
    FactDefinition("expert_data_parallel_size", "count", "World size / (ETP x EP x PP)."),
    FactDefinition("experts_per_rank_count", "count", "Experts of a layer that one rank holds: experts / EP."),
    FactDefinition(
        "tokens_per_expert_count",
        "count",
        "Tokens that an expert gets per micro-batch, routing uniform and none dropped: sequence x MBS x top-k x EP x "
        "ETP / (CP x TP x experts).",
    ),
    FactDefinition("gpus_per_node", "count", "Ranks on one host (LOCAL_WORLD_SIZE)."),
    FactDefinition("ep_spans_nodes", "flag", "Whether an expert-parallel group reaches beyond one host."),
    FactDefinition(
        "ep_is_meant_to_overlap",
        "flag",
        "Whether expert communication has a stream of its own to run beside computing: EP overlap is on, or the "
        "dispatcher is flex.",
    ),
    FactDefinition(
        "dp_spans_nodes", "flag", "Whether the ranks that hold the same pipeline stage are on more than one host."
    ),
    FactDefinition("ep_within_nvlink_domain", "flag", "Whether an expert-parallel group fits the GPU's NVLink domain."),
    FactDefinition(
        "ep_ranks_per_nvlink_domain_count",
        "count",
        "Ranks of an expert-parallel group that one NVLink domain of the GPU model holds: the smaller of the two.",
        "Where the ranks were placed: a job on parts of several racks has fewer together.",
    ),
    FactDefinition(
        "expert_shapes_are_static",
        "flag",
        "Whether experts work on a fixed number of rows: padded to their capacity, or with a paged stash.",
    ),
    FactDefinition(
        "flex_backend_is_chosen",
        "flag",
        "Whether the run itself chose a backend of the flex dispatcher: on its command line, or other than the preset.",
    ),
    FactDefinition("expert_group_ranks_count", "count", "Ranks that share the experts of a layer: EP x ETP."),
    FactDefinition(
        "experts_split_over_group",
        "flag",
        "Whether the number of experts is a multiple of EP x ETP, so that each rank can hold whole experts.",
    ),
    FactDefinition(
        "hybridep_topology",
        "text",
        "What NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN, NVLINK_DOMAIN_SIZE and USE_MNNVL tell HybridEP of NVLink, "
        "beside what the tuned launchers tell it on this GPU: as launched, different, or unset (some are not set).",
    ),
    FactDefinition(
        "ep_internode_unique_copies_fraction",
        "fraction",
        "Token copies that cross nodes when one is sent per destination node, over one per chosen expert: "
        "N(1-(1-1/N)^k)/k for N nodes of an EP group and top-k, routing uniform.",
    ),
    FactDefinition(
        "snapshot_peak_allocated_bytes",
        "bytes",
        "Most memory that tensors asked for at one moment of a recorded allocator history (--memory-snapshot).",
        "What the allocator reserves: it rounds up and keeps what was freed.",
    ),
    FactDefinition(
        "snapshot_peak_reserved_bytes",
        "bytes",
        "Most memory that PyTorch's allocator held of the device in a recorded history (--memory-snapshot).",
        "Memory of the whole device: NCCL, cuBLAS and the driver take theirs outside of the allocator.",
    ),
    FactDefinition(
        "snapshot_fragmentation_fraction",
        "fraction",
        "(reserved - allocated) / reserved at the moment with the most allocated memory (--memory-snapshot).",
    ),
    FactDefinition("gpu.name", "text", "GPU model as the driver names it."),
    FactDefinition("gpu.sm", "text", "Compute capability, as sm_90."),
    FactDefinition("gpu.family", "text", "Row of the hardware table (H100, H200, B200, GB200, ...)."),
    FactDefinition("gpu.nvlink_domain_gpus", "count", "GPUs joined by one NVLink domain."),
    FactDefinition("gpu.memory_bytes", "bytes", "Device memory."),
)

GLOSSARY_BY_NAME: dict[str, FactDefinition] = {definition.name: definition for definition in GLOSSARY}


def is_known_fact(name: str) -> bool:
    """Whether a rule may compare ``name``."""
    return name in GLOSSARY_BY_NAME or name.startswith(("config.", "env."))
