# ruff: noqa: E501
"""Every definition of ``facts/registry.py`` as literals, for packages that may not import facts.

Written from the registry; ``tests/facts/test_registry.py`` holds the two to each other.
"""

from __future__ import annotations

from three_walls.model.fact import FactDefinition, Pool

GLOSSARY: tuple[FactDefinition, ...] = (
    FactDefinition(name="step_ns", unit="ns", meaning="Length of the representative step."),
    FactDefinition(name="step_spread_ratio", unit="ratio", meaning="Longest over shortest kept step, all ranks."),
    FactDefinition(name="kernel_count", unit="count", meaning="Kernels that ran in the step."),
    FactDefinition(
        name="device_busy_ns",
        unit="ns",
        meaning="Union of everything on the device: kernels, copies, memsets, graph envelopes.",
    ),
    FactDefinition(
        name="compute_busy_ns",
        unit="ns",
        meaning="Union of the compute kernels.",
        not_the_same_as="The sum of their durations.",
    ),
    FactDefinition(
        name="compute_busy_fraction",
        unit="fraction",
        meaning="Fraction of the step in which some compute kernel runs.",
        numerator="compute_busy_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="idle_ns",
        unit="ns",
        meaning="Nothing runs on the device: step - device busy.",
        needs=("cuda_graph_activity",),
    ),
    FactDefinition(
        name="offload_copy_exposed_ns",
        unit="ns",
        meaning="Host-to-device and device-to-host copies while nothing else runs.",
        needs=("copies",),
        pool=Pool(part_of=("memory_recoverable_ns",), is_device_busy=True),
    ),
    FactDefinition(
        name="offload_copy_exposed_fraction",
        unit="fraction",
        meaning="Fraction of the step in exposed host copies.",
        numerator="offload_copy_exposed_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="launch_starved_ns",
        unit="ns",
        meaning="Device idle, next operation not launched, its thread not in a synchronizing call.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(
            part_of=("launch_starved_recoverable_ns", "host_idle_ns", "host_recoverable_ns", "idle_ns"),
            is_device_busy=False,
        ),
    ),
    FactDefinition(
        name="launch_starved_fraction",
        unit="fraction",
        meaning="Fraction of the step that is launch-starved.",
        numerator="launch_starved_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="host_blocked_ns",
        unit="ns",
        meaning="Device idle, next operation not launched, its thread in a synchronizing call.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(part_of=("host_idle_ns", "host_recoverable_ns", "idle_ns"), is_device_busy=False),
    ),
    FactDefinition(
        name="host_blocked_fraction",
        unit="fraction",
        meaning="Fraction of the step that is host-blocked.",
        numerator="host_blocked_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="host_idle_ns",
        unit="ns",
        meaning="Launch-starved plus host-blocked: the device waited for the host.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
    ),
    FactDefinition(
        name="host_idle_fraction",
        unit="fraction",
        meaning="Fraction of the step in which the device waited for the host.",
        numerator="host_idle_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="idle_other_ns",
        unit="ns",
        meaning="Device idle after the next operation's launch began, or with no launch recorded.",
        needs=("cuda_graph_activity",),
    ),
    FactDefinition(
        name="idle_other_fraction",
        unit="fraction",
        meaning="Fraction of the step that is idle for no known reason.",
        numerator="idle_other_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="cuda_graph_ns", unit="ns", meaning="Inside CUDA-graph envelopes whose kernels were not recorded."
    ),
    FactDefinition(
        name="cuda_graph_fraction",
        unit="fraction",
        meaning="Fraction of the step inside CUDA graphs whose kernels were not recorded.",
        numerator="cuda_graph_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="attention_unfused_ns",
        unit="ns",
        meaning="Softmax, masks, scales and copies of scores of unfused attention.",
        pool=Pool(part_of=("compute_recoverable_ns", "compute_busy_ns"), is_device_busy=True),
    ),
    FactDefinition(
        name="attention_unfused_fraction",
        unit="fraction",
        meaning="Fraction of the step in the pointwise work of unfused attention.",
        numerator="attention_unfused_ns",
        denominator="step_ns",
    ),
    FactDefinition(name="attention_ns", unit="ns", meaning="Fused attention kernels."),
    FactDefinition(
        name="gemm_ns",
        unit="ns",
        meaning="GEMMs, grouped or not.",
        pool=Pool(part_of=("compute_busy_ns",), is_device_busy=True),
    ),
    FactDefinition(
        name="gemm_fraction",
        unit="fraction",
        meaning="Fraction of the step in GEMMs.",
        numerator="gemm_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="permute_ns",
        unit="ns",
        meaning="Gathering, scattering and permuting tokens; includes small lookups by the same kernels.",
        pool=Pool(part_of=("compute_busy_ns",), is_device_busy=True),
    ),
    FactDefinition(
        name="permute_fraction",
        unit="fraction",
        meaning="Fraction of the step in permuting tokens.",
        numerator="permute_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="elementwise_ns",
        unit="ns",
        meaning="Pointwise and reduction kernels: activations, rotary embedding, loss, sums.",
        pool=Pool(part_of=("compute_busy_ns",), is_device_busy=True),
    ),
    FactDefinition(
        name="elementwise_fraction",
        unit="fraction",
        meaning="Fraction of the step in pointwise kernels.",
        numerator="elementwise_ns",
        denominator="step_ns",
    ),
    FactDefinition(name="unclassified_ns", unit="ns", meaning="Kernels that match no pattern."),
    FactDefinition(
        name="unclassified_fraction",
        unit="fraction",
        meaning="Fraction of the step in kernels that match no pattern.",
        numerator="unclassified_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="ep_busy_ns",
        unit="ns",
        meaning="Union of expert-parallel communication: all-to-all, dispatch, combine, notify.",
    ),
    FactDefinition(
        name="ep_exposed_ns",
        unit="ns",
        meaning="Expert-parallel communication while no compute kernel runs.",
        not_the_same_as="Blocking time: exposed communication may delay nobody. Nor transfer time: part of it is waiting for peers.",
    ),
    FactDefinition(
        name="ep_exposed_fraction",
        unit="fraction",
        meaning="Fraction of the step in exposed expert-parallel communication.",
        numerator="ep_exposed_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="ep_hidden_ns", unit="ns", meaning="Expert-parallel communication while some compute kernel runs."
    ),
    FactDefinition(
        name="ep_hidden_of_busy_fraction",
        unit="fraction",
        meaning="Fraction of expert-parallel communication that is hidden behind compute.",
        numerator="ep_hidden_ns",
        denominator="ep_busy_ns",
    ),
    FactDefinition(
        name="ep_transfer_exposed_ns",
        unit="ns",
        meaning="Exposed EP time without waiting for peers: from the last member's arrival to the call's end where all ranks of the group were captured; else each call counts at most what the fastest tenth of the token-carrying calls of its kind on this rank took.",
        not_the_same_as="From one rank's durations, a measured transfer time: that proxy is low when message sizes vary.",
        pool=Pool(
            part_of=("ep_exposed_ns", "communication_recoverable_ns"),
            is_device_busy=True,
            union="ep_busy_ns",
            hidden_part="ep_hidden_ns",
        ),
    ),
    FactDefinition(
        name="ep_transfer_exposed_fraction",
        unit="fraction",
        meaning="Fraction of the step in exposed EP transfer.",
        numerator="ep_transfer_exposed_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="ep_wait_exposed_ns",
        unit="ns",
        meaning="Exposed EP time beyond its transfer: waiting for peers to arrive.",
        pool=Pool(part_of=("ep_exposed_ns", "wait_exposed_ns"), is_device_busy=True),
    ),
    FactDefinition(
        name="collective_busy_ns",
        unit="ns",
        meaning="Union of all other communication (data, tensor, pipeline, context parallel).",
    ),
    FactDefinition(
        name="collective_exposed_ns", unit="ns", meaning="Other communication while no compute kernel runs."
    ),
    FactDefinition(
        name="collective_exposed_fraction",
        unit="fraction",
        meaning="Fraction of the step in other exposed communication.",
        numerator="collective_exposed_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="collective_transfer_exposed_ns",
        unit="ns",
        meaning="Other exposed communication without waiting for peers; split as for ep_transfer_exposed_ns.",
        pool=Pool(
            part_of=("collective_exposed_ns", "communication_recoverable_ns"),
            is_device_busy=True,
            union="collective_busy_ns",
            hidden_part="",
        ),
    ),
    FactDefinition(
        name="collective_wait_exposed_ns",
        unit="ns",
        meaning="Other exposed communication beyond that: waiting for peers.",
        pool=Pool(part_of=("collective_exposed_ns", "wait_exposed_ns"), is_device_busy=True),
    ),
    FactDefinition(
        name="dp_exposed_ns",
        unit="ns",
        meaning="Exposed transfer of data parallelism: parameters and gradients. Collectives of unknown owner are not in it.",
        pool=Pool(
            part_of=("collective_transfer_exposed_ns", "collective_exposed_ns", "communication_recoverable_ns"),
            is_device_busy=True,
            union="collective_busy_ns",
            hidden_part="",
        ),
    ),
    FactDefinition(
        name="dp_exposed_fraction",
        unit="fraction",
        meaning="Fraction of the step in exposed parameter and gradient transfer.",
        numerator="dp_exposed_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="tp_exposed_ns",
        unit="ns",
        meaning="Exposed transfer of tensor and sequence parallelism.",
        pool=Pool(
            part_of=("collective_transfer_exposed_ns", "collective_exposed_ns", "communication_recoverable_ns"),
            is_device_busy=True,
            union="collective_busy_ns",
            hidden_part="",
        ),
    ),
    FactDefinition(
        name="tp_exposed_fraction",
        unit="fraction",
        meaning="Fraction of the step in exposed tensor-parallel transfer.",
        numerator="tp_exposed_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="cp_exposed_ns",
        unit="ns",
        meaning="Exposed transfer of context parallelism's ring; its other exchanges are not in it.",
        pool=Pool(
            part_of=("collective_transfer_exposed_ns", "collective_exposed_ns", "communication_recoverable_ns"),
            is_device_busy=True,
            union="collective_busy_ns",
            hidden_part="",
        ),
    ),
    FactDefinition(
        name="cp_exposed_fraction",
        unit="fraction",
        meaning="Fraction of the step in exposed context-parallel ring transfer.",
        numerator="cp_exposed_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="wait_exposed_ns", unit="ns", meaning="Exposed communication that is waiting for peers, of all kinds."
    ),
    FactDefinition(
        name="wait_exposed_fraction",
        unit="fraction",
        meaning="Fraction of the step spent waiting for peers.",
        numerator="wait_exposed_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="memory_recoverable_ns",
        unit="ns",
        meaning="Upper bound of what more memory would give back: recompute (where it can be priced) and exposed host copies.",
    ),
    FactDefinition(
        name="communication_recoverable_ns",
        unit="ns",
        meaning="Upper bound of what communication edits give back: exposed transfer of all communication.",
    ),
    FactDefinition(
        name="compute_recoverable_ns",
        unit="ns",
        meaning="Upper bound of what compute edits give back: pointwise work of unfused attention.",
    ),
    FactDefinition(
        name="host_recoverable_ns",
        unit="ns",
        meaning="Upper bound of what host edits give back: launch-starved and host-blocked time, less profiler_excess_ns where a log was given (at least 0).",
        not_the_same_as="A measured part: which part of the step the profiler lengthened is assumed, not seen.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
    ),
    FactDefinition(
        name="launch_starved_recoverable_ns",
        unit="ns",
        meaning="Launch-starved time less profiler_excess_ns where a log was given (at least 0): the profiler slows every launch, so what it added to the step is taken to lie here first.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(
            part_of=("launch_starved_ns", "host_idle_ns", "host_recoverable_ns", "idle_ns"), is_device_busy=False
        ),
    ),
    FactDefinition(
        name="launch_starved_recoverable_fraction",
        unit="fraction",
        meaning="Fraction of the step that is launch-starved and not taken to be the profiler's.",
        numerator="launch_starved_recoverable_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="straggler_late_recoverable_ns",
        unit="ns",
        meaning="straggler_late_ns, less profiler_excess_ns where the rank is launch-starved and a log was given (at least 0): the profiler slows launches, and not on every rank alike.",
        pool=Pool(part_of=("straggler_late_ns",), is_device_busy=False),
    ),
    FactDefinition(
        name="straggler_late_recoverable_fraction",
        unit="fraction",
        meaning="Fraction of the step by which the latest rank is late and that is not taken to be the profiler's.",
        numerator="straggler_late_recoverable_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="overlap_slowdown_ns",
        unit="ns",
        meaning="How much longer GEMMs took while communication was concurrent than the same GEMMs alone: difference of the medians times the concurrent calls.",
        not_the_same_as="A loss to avoid: it is the price of hiding communication, to be compared with what is hidden.",
        pool=Pool(part_of=("gemm_ns", "compute_busy_ns"), is_device_busy=True),
    ),
    FactDefinition(
        name="overlap_tax_fraction",
        unit="fraction",
        meaning="Fraction of the step that GEMMs lose to concurrent communication.",
        numerator="overlap_slowdown_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="pipeline_bubble_ns",
        unit="ns",
        meaning="Nothing computes: waiting in pipeline exchanges for the neighbouring stage while no tokens are exchanged, and the time from the end of the rank's last backward pass to that of the last stage of its pipeline.",
        not_the_same_as="Exposed pipeline exchange: a stage that finishes early waits in the gradients' collectives.",
        pool=Pool(
            part_of=("collective_wait_exposed_ns", "collective_exposed_ns", "wait_exposed_ns"),
            is_device_busy=True,
            union="collective_busy_ns",
            hidden_part="",
        ),
    ),
    FactDefinition(
        name="pipeline_bubble_fraction",
        unit="fraction",
        meaning="Fraction of the step in the pipeline's bubble.",
        numerator="pipeline_bubble_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="pipeline_bubble_excess_ns",
        unit="ns",
        meaning="The pipeline's bubble beyond the one that an even 1F1B schedule leaves (at least 0): uneven stages, and exchanges.",
        pool=Pool(
            part_of=("pipeline_bubble_ns", "collective_wait_exposed_ns", "collective_exposed_ns", "wait_exposed_ns"),
            is_device_busy=True,
            union="collective_busy_ns",
            hidden_part="",
        ),
    ),
    FactDefinition(
        name="pipeline_bubble_excess_fraction",
        unit="fraction",
        meaning="Fraction of the step in the bubble beyond that of an even schedule.",
        numerator="pipeline_bubble_excess_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="shared_expert_ns",
        unit="ns",
        meaning="GEMMs of shared experts, all MoE layers of the step and all directions.",
    ),
    FactDefinition(
        name="expert_backward_gemm_ns",
        unit="ns",
        meaning="GEMMs of routed experts in backward passes, all MoE layers of the step.",
    ),
    FactDefinition(
        name="dispatch_backward_exposed_ns",
        unit="ns",
        meaning="Exposed exchange of what leaves the experts in backward passes (the backward pass of the dispatch), waiting included.",
    ),
    FactDefinition(name="moe_layers_count", unit="count", meaning="MoE layers of the step that could be separated."),
    FactDefinition(
        name="ep_achieved_bytes_per_s",
        unit="bytes_per_s",
        meaning="What a rank sends to other ranks in one dispatch or combine (from the config, routing balanced) over what the fastest tenth of the step's token exchanges took.",
        not_the_same_as="Average throughput: exchanges that waited for peers are left out, unless nearly all did.",
    ),
    FactDefinition(
        name="ep_link_bytes_per_s",
        unit="bytes_per_s",
        meaning="Most that a rank can send to its expert-parallel group: NVLink's limit in one direction inside one domain; beyond it the network's limit per GPU over the fraction of an exchange that crosses it (balanced routing).",
    ),
    FactDefinition(
        name="attention_forward_per_backward_ratio",
        unit="ratio",
        meaning="Attention forward passes per backward pass: 1 without recompute, 2 when attention is computed twice.",
    ),
    FactDefinition(
        name="recompute_ns",
        unit="ns",
        meaning="Forward work replayed in the backward pass: from each replay's first kernel to its backward's. Where kernels do not show that: replayed layers times the median spacing of forward layers.",
        not_the_same_as="Busy time: waiting and idle time inside a replay counts, for it goes when the replay goes.",
        pool=Pool(part_of=("memory_recoverable_ns",), is_device_busy=False),
    ),
    FactDefinition(
        name="recompute_fraction",
        unit="fraction",
        meaning="Share of the step spent on recomputing.",
        numerator="recompute_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="optimizer_launch_starved_ns",
        unit="ns",
        meaning="Launch-starved time from the first to the last optimizer kernel after the step's last GEMM.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(
            part_of=(
                "launch_starved_ns",
                "launch_starved_recoverable_ns",
                "host_idle_ns",
                "host_recoverable_ns",
                "idle_ns",
            ),
            is_device_busy=False,
        ),
    ),
    FactDefinition(
        name="optimizer_launch_starved_fraction",
        unit="fraction",
        meaning="Share of the step in which the optimizer is launch-starved.",
        numerator="optimizer_launch_starved_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="graph_kernel_fraction",
        unit="fraction",
        meaning="Share of the step's kernels that ran inside CUDA graphs.",
        needs=("graph_nodes", "inside_cuda_graphs"),
    ),
    FactDefinition(
        name="rope_kernels_ns",
        unit="ns",
        meaning="Pointwise kernels on tensors of queries' or keys' shape: the unfused rotary embedding, and copies. Only while nothing else computes.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(part_of=("rope_ns", "elementwise_ns", "compute_busy_ns"), is_device_busy=True),
    ),
    FactDefinition(
        name="rope_launch_starved_ns",
        unit="ns",
        meaning="Launch-starved time that ends with one of those kernels, less a proportional share of what the profiler is taken to have added.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(
            part_of=(
                "rope_ns",
                "launch_starved_ns",
                "launch_starved_recoverable_ns",
                "host_idle_ns",
                "host_recoverable_ns",
                "idle_ns",
            ),
            is_device_busy=False,
        ),
    ),
    FactDefinition(
        name="rope_ns",
        unit="ns",
        meaning="Both: rope_kernels_ns and rope_launch_starved_ns.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
    ),
    FactDefinition(
        name="rope_fraction",
        unit="fraction",
        meaning="Share of the step in that.",
        numerator="rope_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="loss_kernels_ns",
        unit="ns",
        meaning="Pointwise kernels of the unfused loss, forward and backward. Only while nothing else computes.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(part_of=("loss_ns", "elementwise_ns", "compute_busy_ns"), is_device_busy=True),
    ),
    FactDefinition(
        name="loss_launch_starved_ns",
        unit="ns",
        meaning="Launch-starved time that ends with one of those kernels, less a proportional share of what the profiler is taken to have added.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(
            part_of=(
                "loss_ns",
                "launch_starved_ns",
                "launch_starved_recoverable_ns",
                "host_idle_ns",
                "host_recoverable_ns",
                "idle_ns",
            ),
            is_device_busy=False,
        ),
    ),
    FactDefinition(
        name="loss_ns",
        unit="ns",
        meaning="Both: loss_kernels_ns and loss_launch_starved_ns.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
    ),
    FactDefinition(
        name="loss_fraction",
        unit="fraction",
        meaning="Share of the step in that.",
        numerator="loss_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="wgrad_accumulation_kernels_ns",
        unit="ns",
        meaning="Adding the gradient of each weight to the gradient buffer, after its GEMM. Only while nothing else computes.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(part_of=("wgrad_accumulation_ns", "elementwise_ns", "compute_busy_ns"), is_device_busy=True),
    ),
    FactDefinition(
        name="wgrad_accumulation_launch_starved_ns",
        unit="ns",
        meaning="Launch-starved time that ends with one of those kernels, less a proportional share of what the profiler is taken to have added.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(
            part_of=(
                "wgrad_accumulation_ns",
                "launch_starved_ns",
                "launch_starved_recoverable_ns",
                "host_idle_ns",
                "host_recoverable_ns",
                "idle_ns",
            ),
            is_device_busy=False,
        ),
    ),
    FactDefinition(
        name="wgrad_accumulation_ns",
        unit="ns",
        meaning="Both: wgrad_accumulation_kernels_ns and wgrad_accumulation_launch_starved_ns.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
    ),
    FactDefinition(
        name="wgrad_accumulation_fraction",
        unit="fraction",
        meaning="Share of the step in that.",
        numerator="wgrad_accumulation_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="router_topk_kernels_ns",
        unit="ns",
        meaning="Kernels on scores and maps of the experts: their choice and the balancing loss. Only while nothing else computes.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(part_of=("router_topk_ns", "compute_busy_ns"), is_device_busy=True),
    ),
    FactDefinition(
        name="router_topk_launch_starved_ns",
        unit="ns",
        meaning="Launch-starved time that ends with one of those kernels, less a proportional share of what the profiler is taken to have added.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(
            part_of=(
                "router_topk_ns",
                "launch_starved_ns",
                "launch_starved_recoverable_ns",
                "host_idle_ns",
                "host_recoverable_ns",
                "idle_ns",
            ),
            is_device_busy=False,
        ),
    ),
    FactDefinition(
        name="router_topk_ns",
        unit="ns",
        meaning="Both: router_topk_kernels_ns and router_topk_launch_starved_ns.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
    ),
    FactDefinition(
        name="router_topk_fraction",
        unit="fraction",
        meaning="Share of the step in that.",
        numerator="router_topk_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="bias_dropout_add_kernels_ns",
        unit="ns",
        meaning="Additions, dropout and scales on hidden states: the unfused residual path. Only while nothing else computes.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(part_of=("bias_dropout_add_ns", "elementwise_ns", "compute_busy_ns"), is_device_busy=True),
    ),
    FactDefinition(
        name="bias_dropout_add_launch_starved_ns",
        unit="ns",
        meaning="Launch-starved time that ends with one of those kernels, less a proportional share of what the profiler is taken to have added.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(
            part_of=(
                "bias_dropout_add_ns",
                "launch_starved_ns",
                "launch_starved_recoverable_ns",
                "host_idle_ns",
                "host_recoverable_ns",
                "idle_ns",
            ),
            is_device_busy=False,
        ),
    ),
    FactDefinition(
        name="bias_dropout_add_ns",
        unit="ns",
        meaning="Both: bias_dropout_add_kernels_ns and bias_dropout_add_launch_starved_ns.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
    ),
    FactDefinition(
        name="bias_dropout_add_fraction",
        unit="fraction",
        meaning="Share of the step in that.",
        numerator="bias_dropout_add_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="barrier_exposed_ns",
        unit="ns",
        meaning="Barriers of ranks (sums of one element) while no compute kernel runs.",
        needs=("api_calls", "launch_correlation", "inside_cuda_graphs"),
        pool=Pool(
            part_of=("collective_wait_exposed_ns", "collective_exposed_ns", "wait_exposed_ns"), is_device_busy=True
        ),
    ),
    FactDefinition(
        name="model_flops_per_step",
        unit="flops",
        meaning="Floating point operations of the model in one step, all GPUs: three times the forward pass of its GEMMs and of causal attention, from the config.",
        not_the_same_as="What the GPUs run: recompute, and the masked half of unfused scores, are no model work.",
    ),
    FactDefinition(
        name="megatron_flops_per_step",
        unit="flops",
        meaning="The same as Megatron counts it for the TFLOP/s/GPU of its log: without the router.",
    ),
    FactDefinition(name="flops_per_gpu_step", unit="flops", meaning="model_flops_per_step over the number of GPUs."),
    FactDefinition(
        name="peak_flops_per_s",
        unit="flops_per_s",
        meaning="The GPU's peak in dense GEMMs at the run's precision (tables/hardware.yaml).",
    ),
    FactDefinition(
        name="mfu_fraction",
        unit="fraction",
        meaning="Model FLOPs utilization of unprofiled steps: flops_per_gpu_step over the log's step time and the peak.",
        not_the_same_as="Utilization across precisions: the peak is that of the run's precision, FP8 doubles it.",
    ),
    FactDefinition(
        name="mfu_traced_fraction",
        unit="fraction",
        meaning="The same for the representative step, as traced.",
        not_the_same_as="Utilization of the run: profiling slows steps.",
    ),
    FactDefinition(
        name="gemm_efficiency_fraction",
        unit="fraction",
        meaning="What GEMMs reach of the GPU's peak while one runs: operations of the rank's layers (replays and unfused scores included) over the time of the gemm and grouped_gemm buckets.",
        not_the_same_as="Utilization of the step: time without a GEMM does not count here.",
    ),
    FactDefinition(
        name="expert_gemm_efficiency_fraction",
        unit="fraction",
        meaning="The same for the expert GEMMs, between dispatch and combine, routing taken to be balanced.",
    ),
    FactDefinition(
        name="gemm_shapes_known_fraction",
        unit="fraction",
        meaning="Share of the GEMMs' time whose shapes were recorded by the operators around their launches.",
    ),
    FactDefinition(
        name="h2d_achieved_bytes_per_s",
        unit="bytes_per_s",
        meaning="Bytes of the step's copies from the host of 1 MiB and more over the sum of their durations.",
        needs=("copies",),
    ),
    FactDefinition(
        name="d2h_achieved_bytes_per_s",
        unit="bytes_per_s",
        meaning="The same for copies to the host.",
        needs=("copies",),
    ),
    FactDefinition(
        name="host_link_bytes_per_s",
        unit="bytes_per_s",
        meaning="The link between GPU and host memory in one direction (PCIe, NVLink-C2C), before protocol overhead.",
    ),
    FactDefinition(
        name="parameters_per_gpu_count",
        unit="count",
        meaning="Parameters on a GPU of the fullest pipeline stage, from the configuration.",
    ),
    FactDefinition(
        name="memory_parameters_bytes", unit="bytes", meaning="Those parameters, in the precision of the model."
    ),
    FactDefinition(
        name="memory_gradients_bytes", unit="bytes", meaning="Their gradients, in the precision they are reduced in."
    ),
    FactDefinition(
        name="memory_optimizer_bytes",
        unit="bytes",
        meaning="The optimizer's copy of the parameters and its moments on that GPU, sharded by the distributed optimizer.",
    ),
    FactDefinition(
        name="memory_activations_bytes",
        unit="bytes",
        meaning="Activations that wait for the backward pass at the peak, with the working set at that moment, estimated from the configuration: in-flight micro-batches, recompute, unfused scores, balanced routing.",
        not_the_same_as="A measurement: compared with logs of unfused attention only, where it is within 3% of the peak.",
    ),
    FactDefinition(
        name="memory_estimated_peak_bytes",
        unit="bytes",
        meaning="Parameters, gradients, optimizer and activations of the fullest pipeline stage together.",
        not_the_same_as="Memory in use: the allocator's fragments, NCCL's buffers and the CUDA context come on top.",
    ),
    FactDefinition(
        name="memory_headroom_bytes",
        unit="bytes",
        meaning="Device memory less the log's peak (memory_peak_bytes), or where no log printed one, less the estimated one.",
        not_the_same_as="Memory that is free: see memory_estimated_peak_bytes for what neither figure contains.",
    ),
    FactDefinition(
        name="memory_peak_bytes",
        unit="bytes",
        meaning="The log's peak of allocated memory; with the optimizer's moments (estimated) added where the log prints memory after its first iteration alone.",
    ),
    FactDefinition(
        name="memory_peak_fraction",
        unit="fraction",
        meaning="Fraction of the device memory that memory_peak_bytes takes.",
    ),
    FactDefinition(
        name="memory_peak_without_recompute_ratio",
        unit="ratio",
        meaning="The log's peak with the estimated activations replaced by those without recompute, over device memory.",
        not_the_same_as="A measured peak: above 1 such a run would not fit.",
    ),
    FactDefinition(
        name="memory_parameters_fraction",
        unit="fraction",
        meaning="Fraction of the device memory that parameters take, from the configuration.",
        numerator="memory_parameters_bytes",
        denominator="gpu.memory_bytes",
    ),
    FactDefinition(
        name="memory_optimizer_fraction",
        unit="fraction",
        meaning="Fraction of the device memory that the optimizer's state takes, from the configuration.",
        numerator="memory_optimizer_bytes",
        denominator="gpu.memory_bytes",
    ),
    FactDefinition(
        name="memory_activations_fraction",
        unit="fraction",
        meaning="Fraction of the device memory that activations take at the peak, estimated from the configuration.",
        numerator="memory_activations_bytes",
        denominator="gpu.memory_bytes",
    ),
    FactDefinition(
        name="memory_pressure",
        unit="text",
        meaning="The gravest sign in the log that device memory is short: out_of_memory, allocator_retries, near_limit (peak of allocated memory), fragmented (of reserved memory alone) or none. Limits: tables/log.yaml. Without a log, none where no step called the driver's allocator.",
        not_the_same_as="The fraction of memory in use: without a log a run near its limit counts as none.",
    ),
    FactDefinition(
        name="driver_peak_bytes",
        unit="bytes",
        meaning="Most device memory allocated by the driver (cudaMalloc) for the process at once, of what the trace recorded.",
        not_the_same_as="Memory in use by tensors: PyTorch keeps what it frees. It is also a lower bound: what was allocated before the capture is listed incompletely.",
        needs=("gpu_memory_usage",),
    ),
    FactDefinition(
        name="driver_growth_in_steps_bytes",
        unit="bytes",
        meaning="Device memory allocated by the driver less what was freed, in all kept steps of the rank.",
        needs=("gpu_memory_usage",),
    ),
    FactDefinition(
        name="allocator_calls_in_steps_count",
        unit="count",
        meaning="Calls that allocate or free device memory through the driver (cudaMalloc, cudaFree, ...), in all kept steps of the rank: a steady step needs none.",
        needs=("api_calls",),
    ),
    FactDefinition(
        name="snapshot_peak_allocated_bytes",
        unit="bytes",
        meaning="Most memory that tensors asked for at one moment of a recorded allocator history (--memory-snapshot).",
        not_the_same_as="What the allocator reserves: it rounds up and keeps what was freed.",
    ),
    FactDefinition(
        name="snapshot_peak_reserved_bytes",
        unit="bytes",
        meaning="Most device memory that PyTorch's allocator reserved in a recorded history (--memory-snapshot).",
        not_the_same_as="Memory of the whole device: NCCL, cuBLAS and the driver allocate theirs outside the allocator.",
    ),
    FactDefinition(
        name="snapshot_fragmentation_fraction",
        unit="fraction",
        meaning="(reserved - allocated) / reserved at the moment with the most allocated memory (--memory-snapshot).",
    ),
    FactDefinition(
        name="unprofiled_step_ns",
        unit="ns",
        meaning="Median of the log's steady iterations outside the profiler's range.",
    ),
    FactDefinition(
        name="unprofiled_step_spread_ratio", unit="ratio", meaning="Longest over shortest of those iterations."
    ),
    FactDefinition(
        name="unprofiled_step_range_ns",
        unit="ns",
        meaning="Longest less shortest of those iterations.",
        not_the_same_as="Time of one step: it is what differs between steps, in none of which a constant part shows.",
        pool=Pool(part_of=(), is_device_busy=False),
    ),
    FactDefinition(
        name="unprofiled_steps_count", unit="count", meaning="Number of those iterations (lines of the log)."
    ),
    FactDefinition(
        name="traced_step_ns",
        unit="ns",
        meaning="The representative step, as traced: to be compared with unprofiled_step_ns.",
    ),
    FactDefinition(
        name="profiler_perturbation_ratio",
        unit="ratio",
        meaning="Traced step over unprofiled step: how much longer the profiler made it.",
    ),
    FactDefinition(
        name="profiler_excess_ns",
        unit="ns",
        meaning="Traced step less unprofiled step, where that is more than iterations differ by themselves; else 0.",
        not_the_same_as="A part of the budget: which bucket it lies in is not measured.",
    ),
    FactDefinition(
        name="log_deepep_unavailable",
        unit="flag",
        meaning="The log reports that DeepEP is not installed or does not run on this GPU.",
        not_the_same_as="Proof that it is there: where the log reports nothing the fact is missing.",
    ),
    FactDefinition(name="log_hybridep_unavailable", unit="flag", meaning="The same of HybridEP."),
    FactDefinition(
        name="log_unavailable_dispatchers",
        unit="text",
        meaning="The dispatchers that the log reports as unavailable; unset where none is.",
    ),
    FactDefinition(
        name="log_tflops_per_gpu",
        unit="tflops",
        meaning="Model TFLOP/s per GPU as the log prints it; median, unprofiled.",
    ),
    FactDefinition(
        name="log_peak_memory_bytes",
        unit="bytes",
        meaning="Largest peak of allocated memory, of the ranks that printed it.",
    ),
    FactDefinition(
        name="log_reserved_memory_bytes", unit="bytes", meaning="Largest peak of reserved memory, of the same ranks."
    ),
    FactDefinition(
        name="log_memory_iterations_count",
        unit="count",
        meaning="Iterations of the run before the log's last memory line. After one, the peak lacks the optimizer's moments, which its first update creates.",
    ),
    FactDefinition(name="log_oom_count", unit="count", meaning="Different out-of-memory errors in the log."),
    FactDefinition(
        name="log_allocator_retries_count",
        unit="count",
        meaning="Allocations that failed at first, most of any rank: the allocator released its cache and tried again.",
    ),
    FactDefinition(
        name="ranks_captured_count", unit="count", meaning="Ranks (GPUs) whose kernels are in the traces given."
    ),
    FactDefinition(
        name="straggler_late_ns",
        unit="ns",
        meaning="By how much per step the latest rank arrives after the last but one, beyond what its peers do; 0 where no rank is late.",
        not_the_same_as="The waiting of the others: several of them wait at once.",
        pool=Pool(part_of=("straggler_late_recoverable_ns",), is_device_busy=False),
    ),
    FactDefinition(
        name="straggler_late_fraction",
        unit="fraction",
        meaning="Fraction of the step by which the latest rank is late.",
        numerator="straggler_late_ns",
        denominator="step_ns",
    ),
    FactDefinition(
        name="straggler_cause",
        unit="text",
        meaning="Why that rank is late: slow_compute, expert_imbalance, launch_starved, host_blocked, late_stage or unknown.",
    ),
    FactDefinition(
        name="capture_start_skew_ns",
        unit="ns",
        meaning="From the first operation that the profiler recorded on the first rank to that on the last rank.",
    ),
    FactDefinition(
        name="capture_start_skewed_steps_count",
        unit="count",
        meaning="Kept steps, of all ranks, that began before every rank was captured: nothing is compared in them.",
    ),
    FactDefinition(
        name="num_microbatches",
        unit="count",
        meaning="Micro-batches per step and rank: GBS / (MBS x data-parallel size).",
    ),
    FactDefinition(
        name="world_size",
        unit="count",
        meaning="Ranks of the run: WORLD_SIZE, or what its log or configuration states.",
    ),
    FactDefinition(name="data_parallel_size", unit="count", meaning="World size / (TP x PP x CP)."),
    FactDefinition(name="expert_data_parallel_size", unit="count", meaning="World size / (ETP x EP x PP)."),
    FactDefinition(
        name="experts_per_rank_count", unit="count", meaning="Experts of a layer on one rank: experts / EP."
    ),
    FactDefinition(
        name="tokens_per_expert_count",
        unit="count",
        meaning="Tokens per expert and micro-batch, with uniform routing and no drops: sequence x MBS x top-k x EP x ETP / (CP x TP x experts).",
    ),
    FactDefinition(name="gpus_per_node", unit="count", meaning="Ranks on one host (LOCAL_WORLD_SIZE)."),
    FactDefinition(
        name="ep_spans_nodes", unit="flag", meaning="Whether an expert-parallel group spans more than one host."
    ),
    FactDefinition(
        name="ep_is_meant_to_overlap",
        unit="flag",
        meaning="Whether expert communication runs on its own stream, concurrent with compute: EP overlap is on, or the dispatcher is flex.",
    ),
    FactDefinition(
        name="dp_spans_nodes",
        unit="flag",
        meaning="Whether the ranks that hold the same pipeline stage are on more than one host.",
    ),
    FactDefinition(
        name="ep_within_nvlink_domain",
        unit="flag",
        meaning="Whether an expert-parallel group fits into the GPU's NVLink domain.",
    ),
    FactDefinition(
        name="ep_ranks_per_nvlink_domain_count",
        unit="count",
        meaning="Ranks of an expert-parallel group that fit into one NVLink domain of the GPU model.",
        not_the_same_as="Where the ranks were placed: a job on parts of several racks has fewer of them together.",
    ),
    FactDefinition(
        name="expert_shapes_are_static",
        unit="flag",
        meaning="Whether experts work on a fixed number of rows: padded to their capacity, or with a paged stash.",
    ),
    FactDefinition(
        name="flex_backend_is_chosen",
        unit="flag",
        meaning="Whether the run itself chose the backend of the flex dispatcher: on its command line, or another than the preset.",
    ),
    FactDefinition(
        name="expert_group_ranks_count", unit="count", meaning="Ranks that share the experts of a layer: EP x ETP."
    ),
    FactDefinition(
        name="experts_split_over_group",
        unit="flag",
        meaning="Whether the number of experts is a multiple of EP x ETP, so that each rank can hold whole experts.",
    ),
    FactDefinition(
        name="hybridep_topology",
        unit="text",
        meaning="NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN, NVLINK_DOMAIN_SIZE and USE_MNNVL, compared with what the tuned launchers set on this GPU: as launched, different, or unset (some are not set).",
    ),
    FactDefinition(
        name="ep_internode_unique_copies_fraction",
        unit="fraction",
        meaning="Token copies that cross nodes with one copy per destination node, over those with one copy per chosen expert: N(1-(1-1/N)^k)/k for N nodes of an EP group and top-k, with uniform routing.",
    ),
    FactDefinition(
        name="pipeline_bubble_expected_fraction",
        unit="fraction",
        meaning="Fraction of the step that an even 1F1B schedule leaves idle: (p-1) / (m*v + p-1) for p stages, m micro-batches, v virtual stages per rank.",
        not_the_same_as="A measured time: uneven stages and exchanges add to it.",
    ),
    FactDefinition(
        name="smaller_micro_batch_size",
        unit="count",
        meaning="Largest proper divisor of the micro-batch size; missing where it is 1.",
    ),
    FactDefinition(
        name="larger_micro_batch_size",
        unit="count",
        meaning="Twice the micro-batch size; missing where half as many micro-batches would not fill the pipeline.",
    ),
    FactDefinition(
        name="larger_expert_parallel_size",
        unit="count",
        meaning="Twice the expert-parallel size; missing where experts or ranks cannot be split that way.",
    ),
    FactDefinition(name="gpu.name", unit="text", meaning="GPU model as the driver names it."),
    FactDefinition(name="gpu.sm", unit="text", meaning="Compute capability, as sm_90."),
    FactDefinition(name="gpu.family", unit="text", meaning="Row of the hardware table (H100, H200, B200, GB200, ...)."),
    FactDefinition(name="gpu.nvlink_domain_gpus", unit="count", meaning="GPUs joined by one NVLink domain."),
    FactDefinition(name="gpu.memory_bytes", unit="bytes", meaning="Device memory."),
)

GLOSSARY_BY_NAME: dict[str, FactDefinition] = {definition.name: definition for definition in GLOSSARY}


def is_known_fact(name: str) -> bool:
    """Whether a rule may compare ``name``."""
    return name in GLOSSARY_BY_NAME or name.startswith(("config.", "env."))
