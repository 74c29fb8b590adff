"""What Megatron-Bridge makes of a configuration between the overrides and its checks.

In its order: the mixed-precision recipe is copied over the model, the optimizer and DDP; the CommOverlapConfig is
checked and copied over them; then the model and the rest fill in what follows from other settings. Constraints are
judged on the result, those of the CommOverlapConfig on the configuration before its copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from three_walls.bridge.merged_config import (
    COMM_OVERLAP,
    COMM_OVERLAP_CLASS,
    MIXED_PRECISION,
    MIXED_PRECISION_CLASS,
    SAME_AS_GATHER,
    MergedConfig,
    freeze,
)
from three_walls.lib.expressions import FAILURES, multiply
from three_walls.megatron.derive import (
    UNKNOWN,
    KnownSettings,
    UnknownSettingError,
    count_split_layers,
    derive_bridge,
    list_recomputed_modules,
    overlaps_tensor_parallelism,
)
from three_walls.megatron.pipeline_layout import read_layout
from three_walls.tables.bridge_releases import BridgeSchema, bridge_schema, precision_recipe, release_number

COPIED_TO = ("model", "optimizer", "ddp")
"""Sections that the mixed-precision recipe is copied to."""
FINE_TUNING_DATASETS = (
    "FinetuningDatasetConfig",
    "HFDatasetConfig",
    "GPTSFTDatasetConfig",
    "DirectHFSFTDatasetConfig",
    "EnergonDatasetConfig",
    "MockVLMSFTDatasetConfig",
)
"""Datasets for fine-tuning: they save every field, and their length under one name."""
SEQUENCE_DATASETS = ("GPTDatasetConfig", "MockGPTDatasetConfig", "GPTFIMDatasetConfig", *FINE_TUNING_DATASETS)
"""Datasets whose sequence length Bridge compares with the model's."""
ENVIRONMENT, PLATFORM, DERIVED, BEFORE = "env.", "platform.", "derived.", "before."
"""Prefixes of names that are no settings of the final configuration."""
_BUCKET_SIZE = 128 * 1024 * 1024


class Resolved(KnownSettings):
    """The settings by Bridge path, what follows from them, and what cannot be calculated."""

    def __init__(self, paths: Mapping[str, Any], config: MergedConfig, schema: BridgeSchema, version: str) -> None:
        """``config``: where the settings are from; it has the environment and the platform."""
        super().__init__(dict(paths), model="model.")
        self._config, self.schema, self.version = config, schema, version
        self.release, self.world_size = release_number(version), config.platform.get("world_size")
        self.before_overlap: dict[str, Any] = {}
        """The settings after the mixed-precision recipe, before the CommOverlapConfig is copied."""
        self.derived: dict[str, Any] = {}
        """By the names in ``DERIVED_NAMES``, as far as known."""
        self.problems: list[str] = []
        """Errors that values of a wrong kind raise on the way."""

    def known_before(self, name: str) -> Any:
        """What the configuration without the overrides has for a field of the model."""
        return self._config.paths.get(f"model.{name}", self._config.values.get(name))

    def find(self, name: str) -> Any:
        """The value of a name in a constraint; ``Truth.UNKNOWN`` where it is not known."""
        if "." not in name:  # most names are fields of the model
            return self.values.get(name if name in self.schema.sections else f"model.{name}", UNKNOWN)
        if name.startswith(ENVIRONMENT):
            unset = None if self._config.environment_is_known else UNKNOWN
            value = self._config.environment.get(name.removeprefix(ENVIRONMENT), unset)
            return "" if value is None else value
        if name.startswith(PLATFORM):
            return self._config.platform.get(name.removeprefix(PLATFORM), UNKNOWN)
        if name.startswith(DERIVED):
            return self.derived.get(name.removeprefix(DERIVED), UNKNOWN)
        if name.startswith(BEFORE):
            name = name.removeprefix(BEFORE)
            is_path = "." in name or name in self.schema.sections
            return self.before_overlap.get(name if is_path else f"model.{name}", UNKNOWN)
        outer, _, field = name.rpartition(".")
        if name not in self.values and "." in outer:  # a field of an object, or of a mapping
            holder = self.values.get(outer, UNKNOWN)
            holder = {} if holder is None else holder
            return holder.get(field) if isinstance(holder, dict) and "_target_" not in holder else UNKNOWN
        return self.values.get(name, UNKNOWN)


DERIVED_NAMES = {
    "data_parallel_size": "GPUs by those of one copy of the model",
    "graphed_modules": "modules that CUDA graphs capture, under whichever of the two names",
    "graph_problem": "what is wrong with the names of graphed modules; empty if nothing",
    "graphed_before_overlap": "the same modules as Bridge reads them before the copy of comm_overlap",
    "full_iteration_graph": "whether one graph holds the whole iteration",
    "recompute_modules": "recomputed modules once the defaults are filled in",
    "hybrid_layers": "layers that the pattern of a hybrid model names",
    "layout_problem": "what is wrong with pipeline_model_parallel_layout; empty if nothing",
    "layout_virtual_stages": "virtual stages of pipeline_model_parallel_layout",
    "middle_layers": "layers that the first and last stage leave",
    "middle_stages": "stages that the first and last stage leave",
    "counted_layers": "layers, with the embedding and the loss where they count as one",
    "finetunes": "whether the dataset is one for fine-tuning",
    "dataset_sequence_length": "sequence length of the dataset, where Bridge compares it",
    "eval_global_batch_size": "batch of an evaluation, the training's where it has none",
    "eval_micro_batch_size": "micro batch of an evaluation, the training's where it has none",
    "eval_data_parallel_size": "data parallelism of an evaluation",
    "train_iters": "iterations, from the samples where those are given",
    "lr_decay_steps": "samples until the learning rate has decayed",
    "distributed_optimizer": "whether either section turns the distributed optimizer on, or FSDP: then both are",
    "megatron_fsdp": "whether either section turns Megatron FSDP on: Bridge then turns on both",
    "scheduler_counts_iterations": "whether a scheduler setting counts iterations",
    "attention_backend": "member of AttnBackend; null where a text, which is none, stands for it",
    "activation": "name of the activation function",
    "scheduler_counts_samples": "whether a scheduler setting counts samples",
}
"""What constraints may compare under ``derived.``."""


def resolve(paths: Mapping[str, Any], config: MergedConfig, version: str) -> Resolved:
    """The settings ``paths`` of ``config`` after Bridge's copies and defaults."""
    state = Resolved(paths, config, bridge_schema(version), version)
    for step in _STEPS:
        if step is _copy_overlap:
            state.before_overlap = dict(state.values)
        try:
            step(state)
        except FAILURES as error:
            state.problems.append(f"{type(error).__name__}: {error}")
        except UnknownSettingError:
            continue
    return state


def _copy_precision(state: Resolved) -> None:
    values, schema = state.values, state.schema
    precision = values.get(MIXED_PRECISION)
    if isinstance(precision, str) and precision != MIXED_PRECISION_CLASS:
        recipe = precision_recipe(state.version, precision)
        if recipe is None:
            return  # a name that is not registered: the check of the value reports it
        values |= {f"{MIXED_PRECISION}.{name}": freeze(value) for name, value in recipe.items()}
        values[MIXED_PRECISION] = MIXED_PRECISION_CLASS
    elif precision != MIXED_PRECISION_CLASS:
        return
    # The two names of each are kept the same; the second one is set last.
    for name in SAME_AS_GATHER:
        if f"{MIXED_PRECISION}.{name}_gather" in values:
            values[f"{MIXED_PRECISION}.{name}"] = values[f"{MIXED_PRECISION}.{name}_gather"]
    for name in schema.sections[MIXED_PRECISION].fields:
        for section in COPIED_TO:
            if schema.find(f"{section}.{name}") is not None:
                state.put(f"{section}.{name}", state.look_up(f"{MIXED_PRECISION}.{name}"))


def _derive_data_parallel_size(state: Resolved) -> None:
    if state.world_size is None:
        raise UnknownSettingError("world_size")
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    tensor, pipeline, context = (state.get(name) for name in names)
    state.derived["data_parallel_size"] = state.world_size // multiply(tensor, pipeline, context)


def _copy_overlap(state: Resolved) -> None:
    values, schema = state.values, state.schema
    if values.get(COMM_OVERLAP) != COMM_OVERLAP_CLASS:
        return
    fields = schema.sections[COMM_OVERLAP].fields
    chosen = {name: state.look_up(f"{COMM_OVERLAP}.{name}") for name in fields}
    stages, virtual = (state.look_up(f"{kind}pipeline_model_parallel_size") for kind in ("", "virtual_"))
    has_stages = UNKNOWN if stages is UNKNOWN else stages > 1
    interleaves: Any = has_stages
    if has_stages is True:
        interleaves = UNKNOWN if virtual is UNKNOWN else virtual is not None and virtual > 1
    defaults: dict[str, Any] = {
        "defer_embedding_wgrad_compute": False,
        "wgrad_deferral_limit": -1,
        "overlap_moe_expert_parallel_comm": False,
        "delay_wgrad_compute": False,
        "overlap_p2p_comm": interleaves,
        "batch_p2p_comm": UNKNOWN if interleaves is UNKNOWN else has_stages and not interleaves,
        "tp_comm_overlap": False,
    }
    if chosen["tp_comm_overlap"] is True:
        try:
            chosen["tp_comm_overlap"] = overlaps_tensor_parallelism(state)
        except UnknownSettingError:
            chosen["tp_comm_overlap"] = UNKNOWN
    for name, default in defaults.items():
        state.put(name, _choose(chosen, name, default))
    if not values.get("ddp.use_distributed_optimizer", False):
        return
    copies = state.derived.get("data_parallel_size")
    is_parallel: Any = UNKNOWN if copies is None else copies > 1
    shared: dict[str, Any] = {
        "bucket_size": _BUCKET_SIZE if is_parallel is True else is_parallel or None,
        "overlap_grad_reduce": is_parallel,
        "overlap_param_gather": is_parallel,
        "overlap_param_gather_with_optimizer_step": False,
        "align_param_gather": interleaves if is_parallel is True else is_parallel,
    }
    for name, default in shared.items():
        for section in ("optimizer", "ddp"):
            if schema.find(f"{section}.{name}") is not None:
                state.put(f"{section}.{name}", _choose(chosen, name, default))


def _choose(chosen: Mapping[str, Any], name: str, default: Any) -> Any:
    """What the CommOverlapConfig sets, else Bridge's default."""
    return default if chosen.get(name) is None else chosen[name]


def _derive_recompute(state: Resolved) -> None:
    state.derived["recompute_modules"] = list_recomputed_modules(state)


def _finalize_model(state: Resolved) -> None:
    """What Bridge's model and Megatron Core fill in before Core's checks."""
    derive_bridge(state, state.release)


def _derive_backend(state: Resolved) -> None:
    if state.optional("moe_enable_deepep") and state.optional("moe_flex_dispatcher_backend") != "hybridep":
        state.put("moe_flex_dispatcher_backend", "deepep")
    if state.optional("moe_router_padding_for_fp8"):
        state.put("moe_router_padding_for_quantization", True)
    capacity = state.optional("moe_expert_capacity_factor")
    if capacity is not None and capacity < 0:
        state.put("moe_expert_capacity_factor", None)


def _derive_graphs(state: Resolved) -> None:
    """The graphed modules: up to 0.4 one list names them, from 0.5 on the older list is moved to the newer one."""
    values, release = state.values, state.release
    implementation = state.get("cuda_graph_impl")
    if release >= (0, 6) and implementation == "none":  # the lists are emptied before they are checked
        values["model.cuda_graph_scope"] = None
        values["model.cuda_graph_modules"] = ()
    values["model.cuda_graph_scope_before"] = values.get("model.cuda_graph_scope")
    if values.get("model.enable_cuda_graph") and implementation == "none":
        implementation = "local"
    elif values.get("model.external_cuda_graph") and implementation == "none":
        implementation = "transformer_engine"
    values["model.cuda_graph_impl"] = implementation
    if release >= (0, 5):
        modules = state.get("cuda_graph_modules")
        scope = values.get("model.cuda_graph_scope")
        names = modules if scope is None else scope
        known = tuple(state.schema.enums["CudaGraphModule"].members)
    else:
        names, known = state.get("cuda_graph_scope"), tuple(state.schema.enums["CudaGraphScope"].members)
    graphed, problem = _normalize_modules(names, known, release)
    migrated = [name for name in graphed if name not in known]
    if release >= (0, 5) and not problem and migrated:
        graphed = tuple(name for name in graphed if name in known)
        problem = _migrate(state, migrated, implementation)
        implementation = values["model.cuda_graph_impl"]
    state.derived["graph_problem"] = problem
    if problem:
        return
    if implementation == "local" and not {"moe_router", "moe_preprocess"}.isdisjoint(graphed):  # it graphs both then
        graphed = tuple(dict.fromkeys((*graphed, "moe_router", "moe_preprocess")))
    state.derived["graphed_modules"] = graphed
    state.derived["full_iteration_graph"] = (
        implementation == "full_iteration"
        if release >= (0, 5)
        else implementation == "local" and "full_iteration" in graphed
    )


def _normalize_modules(names: Any, known: tuple[str, ...], release: tuple[int, int]) -> tuple[tuple[Any, ...], str]:
    """A list of modules from every form in which it may be given, and what is wrong with it."""
    if names is None:
        return (), ""
    if isinstance(names, str):
        listed: tuple[Any, ...] = tuple(names.split(",")) if names or release < (0, 5) else ()
    elif isinstance(names, tuple):
        listed = names
    elif release >= (0, 5):
        listed = (names,)
    else:
        return (), f"expected a list or words, found {names}"
    if not all(isinstance(name, str) for name in listed):
        return (), f"expected names of modules, found {listed}"
    if "full" in listed:
        return ((), "") if listed == ("full",) else ((), "full scope cannot be used with other scopes")
    listed = tuple(name.removeprefix("CudaGraphScope.").removeprefix("CudaGraphModule.") for name in listed)
    moved = ("full_iteration", "full_iteration_inference") if release >= (0, 5) else ()
    unknown = [name for name in listed if name not in (*known, *moved)]
    return (listed, "") if not unknown else ((), f"unknown modules {', '.join(unknown)}")


def _migrate(state: Resolved, migrated: list[Any], implementation: Any) -> str:
    """Move a scope that is an implementation from 0.5 on; what is wrong with that, or nothing."""
    inference = state.optional("inference_cuda_graph_scope")
    if len(set(migrated)) > 1:
        return "the list cannot contain multiple deprecated values at the same time"
    if migrated[0] == "full_iteration":
        if implementation not in ("none", "local", "full_iteration"):
            return f"full_iteration cannot be combined with cuda_graph_impl={implementation}"
        if inference not in (None, "none"):
            return f"full_iteration cannot be combined with inference_cuda_graph_scope={inference}"
        state.values["model.cuda_graph_impl"] = "full_iteration"
    elif implementation not in ("none", "local") or inference not in (None, "block"):
        return "full_iteration_inference cannot be combined with this implementation and scope"
    return ""


def _derive_modules_before_overlap(state: Resolved) -> None:
    """Names in both lists as Bridge reads them for the checks of delayed weight gradients.

    Up to 0.4 it looks for members of the enum, and overrides give words.
    """
    found: list[str] = []
    scope = state.get("cuda_graph_scope")
    if state.release < (0, 5) and scope != state.known_before("cuda_graph_scope"):
        scope = ()
    for listed in (scope, state.optional("cuda_graph_modules", ())):
        if isinstance(listed, str):
            listed = tuple(listed.split(","))
        if isinstance(listed, tuple):
            found += [str(element).rpartition(".")[2] for element in listed]
    state.derived["graphed_before_overlap"] = tuple(name for name in found if name != "full")  # which names none


def _derive_stages(state: Resolved) -> None:
    values = state.values
    patterns = (values.get("model.hybrid_override_pattern"), values.get("model.hybrid_layer_pattern"))
    pattern = next((found for found in patterns if isinstance(found, str)), None)
    if pattern is not None and state.release >= (0, 4):
        state.derived["hybrid_layers"] = len(pattern.partition("/")[0].replace("|", ""))
    layers, stages = state.get("num_layers"), state.get("pipeline_model_parallel_size")
    layout = values.get("model.pipeline_model_parallel_layout")
    if layout is not None:
        problem, virtual = read_layout(layout, stages, layers, values.get("model.mtp_num_layers"))
        state.derived["layout_problem"] = problem
        if virtual is not None:
            state.derived["layout_virtual_stages"] = virtual
    first = values.get("model.num_layers_in_first_pipeline_stage")
    last = values.get("model.num_layers_in_last_pipeline_stage")
    given = [size for size in (first, last) if size is not None]
    if given:
        state.derived["middle_layers"] = layers - sum(given)
        state.derived["middle_stages"] = stages - len(given)
    counted = count_split_layers(state)
    if counted != layers:
        state.derived["counted_layers"] = counted


def _derive_sequence(state: Resolved) -> None:
    kind = state.values.get("dataset")
    if isinstance(kind, str):
        state.derived["finetunes"] = kind in FINE_TUNING_DATASETS
        if kind not in SEQUENCE_DATASETS:
            return
        data, blend = state.values.get("dataset.data_path"), state.values.get("dataset.blend", UNKNOWN)
        if data is not None and blend is None and kind not in FINE_TUNING_DATASETS:
            state.values["dataset.blend"] = (data, None)
    names = ("dataset.seq_length", "dataset.sequence_length")
    found = next((state.values[name] for name in names if name in state.values), UNKNOWN)
    if found is not UNKNOWN:
        state.derived["dataset_sequence_length"] = found


def _derive_schedule(state: Resolved) -> None:
    parts = ("lr_decay", "lr_warmup", "lr_wsd_decay")
    scheduler, samples = (
        {f"{part}_{unit}": state.get(f"scheduler.{part}_{unit}") for part in parts} for unit in ("iters", "samples")
    )
    state.derived["scheduler_counts_iterations"] = _counts(scheduler, "lr_warmup_iters")
    state.derived["scheduler_counts_samples"] = _counts(samples, "lr_warmup_samples")
    batch = state.get("train.global_batch_size")
    iterations, trained = state.get("train.train_iters"), state.get("train.train_samples")
    if trained is not None:
        state.derived["train_iters"] = trained // batch
        decay = samples["lr_decay_samples"]
        state.derived["lr_decay_steps"] = trained if decay is None else decay
        return
    state.derived["train_iters"] = iterations
    longest = state.optional("scheduler.max_steps") if state.release >= (0, 6) else None
    decay = longest if longest is not None else scheduler["lr_decay_iters"]
    if iterations is None:
        return
    state.derived["lr_decay_steps"] = multiply(iterations if decay is None else decay, batch)
    warmup = state.optional("scheduler.lr_warmup_fraction")
    steps = state.derived["lr_decay_steps"]
    compared = multiply(scheduler["lr_warmup_iters"], batch) if warmup is None else multiply(warmup, steps)
    _ = multiply(iterations, batch), compared >= steps
    if scheduler["lr_wsd_decay_iters"] is not None:
        _ = scheduler["lr_wsd_decay_iters"] * 1  # times the batch, which repeats a text or a list


def _counts(values: Mapping[str, Any], warmup: str) -> bool:
    return any(value != 0 if name == warmup else value is not None for name, value in values.items())


def _derive_attention(state: Resolved) -> None:
    backend = state.get("attention_backend")
    if isinstance(backend, dict):
        members = state.schema.enums["AttnBackend"].members
        backend = next((name for name, number in members.items() if (number,) == backend.get("_args_")), None)
    elif backend != state.known_before("attention_backend"):
        backend = None
    state.derived["attention_backend"] = backend


def _derive_activation(state: Resolved) -> None:
    """``torch.nn.functional.silu``, ``<function silu at 0x7f>`` and ``<built-in function silu>`` are silu.

    What is no function equals none of those that constraints name.
    """
    activation = state.get("activation_func")
    if isinstance(activation, str):
        name = activation.strip("<>").removeprefix("built-in ").removeprefix("function ")
        state.derived["activation"] = name.partition(" at ")[0].rpartition(".")[2]
    elif activation is not None:
        state.derived["activation"] = str(activation)


def _derive_switches(state: Resolved) -> None:
    values = state.values
    for name, field, sections in (
        ("distributed_optimizer", "use_distributed_optimizer", ("ddp", "optimizer")),
        ("megatron_fsdp", "use_megatron_fsdp", ("dist", "ddp")),
    ):
        switches = [values.get(f"{section}.{field}", UNKNOWN) for section in sections]
        if any(value is not UNKNOWN and value for value in switches):
            state.derived[name] = True
        elif UNKNOWN not in switches:
            state.derived[name] = False
    if state.derived.get("megatron_fsdp") and state.release >= (0, 5):  # before, both stay what they are
        state.derived["distributed_optimizer"] = True
    if values.get("rng.te_rng_tracker") or values.get("model.use_te_rng_tracker"):
        values["rng.te_rng_tracker"] = values["model.use_te_rng_tracker"] = True


def _derive_evaluation(state: Resolved) -> None:
    context = state.optional("dist.eval_context_parallel_size") if state.release >= (0, 6) else None
    if "data_parallel_size" not in state.derived:
        raise UnknownSettingError("world_size")
    state.derived["eval_data_parallel_size"] = state.derived["data_parallel_size"]
    if context is not None:
        copies = multiply(*(state.get(f"{kind}_model_parallel_size") for kind in ("tensor", "pipeline")), context)
        state.derived["eval_data_parallel_size"] = state.world_size // copies
    for name in ("global_batch_size", "micro_batch_size"):
        value = state.get(f"validation.eval_{name}")
        state.derived[f"eval_{name}"] = state.get(f"train.{name}") if value is None else value


_STEPS = (
    _copy_precision,
    _derive_data_parallel_size,
    _derive_modules_before_overlap,
    _copy_overlap,
    _derive_recompute,
    _finalize_model,
    _derive_backend,
    _derive_stages,
    _derive_graphs,
    _derive_sequence,
    _derive_attention,
    _derive_activation,
    _derive_switches,
    _derive_schedule,
    _derive_evaluation,
)
"""In Bridge's order."""
