"""Writes tables/generated/bridge/type-mismatches/: values of a wrong kind that Megatron-Bridge refuses, by field.

    PYTHONPATH=<unpacked wheels> <interpreter with Megatron-Bridge's dependencies> tools/bridge_type_mismatches.py 0.6.2

It runs in the interpreter that has Megatron-Bridge, on a CPU (three_walls/bridge/real_bridge/stubs.py replaces the
rest). Every field of the release gets values that do not fit it, one at a time, in several valid configurations that
differ in what they switch on; Bridge then validates. What it refuses in all of them is written as ``refused``, what it
refuses in some of them as ``sometimes``. What is in neither list it accepted everywhere.

The answers depend on the release alone: packages that the interpreter has beyond those that Bridge is made to run with
here are hidden, and every value is tried with the same variables, in an empty folder.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import io
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "tables" / "generated" / "bridge"
sys.path.insert(0, str(ROOT / "three_walls" / "bridge" / "real_bridge"))

RECIPES = ("qwen3_30b_a3b_pretrain_8gpu_h100_bf16_config", "qwen3_30b_a3b_pretrain_config")
"""The recipe to start from: the first that the release has. Both are for 8 GPUs: TP 4, PP 2, EP 4, full recompute."""
REQUEST = {
    "gpu_name": "NVIDIA H100 80GB HBM3",
    "gpu_major": 9,
    "transformer_engine": "2.14.0",
    "models": str(ROOT / "tests" / "bridge" / "models"),
}
ENVIRONMENT = {"WORLD_SIZE": "8", "NVTE_CPU_OFFLOAD_V1": "1", "NCCL_ALGO": "Ring", "HF_HUB_OFFLINE": "1"}
PACKAGES = ("torch", "transformers", "omegaconf", "hydra-core", "einops", "datasets", "triton", "pillow")
"""These, and what they need, are what Bridge finds (with BRIDGE_NEEDS of the Makefile installed): it refuses other
fields where MLflow is installed, and where an accelerator's package is."""

NO_RECOMPUTE = "m.recompute_granularity = m.recompute_method = m.recompute_num_layers = None"
CONFIGURATIONS = {
    "recipe": (),
    "overlapped experts, Transformer Engine's graphs": (
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
        NO_RECOMPUTE,
        "cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision)",
        "m.pipeline_model_parallel_size = 1",
        "cfg.comm_overlap = CommOverlapConfig(",
        "    tp_comm_overlap=True, overlap_moe_expert_parallel_comm=True, delay_wgrad_compute=True)",
        "m.cuda_graph_impl, m.cuda_graph_scope = 'transformer_engine', ['moe_router', 'moe_preprocess']",
        "cfg.rng.te_rng_tracker = True",
        "cfg.optimizer.use_precision_aware_optimizer = True",
        "cfg.profiling.use_nsys_profiler = True",
    ),
    "selective recompute, fine-grained offload, FP8, shared experts, dropped tokens": (
        "m.recompute_granularity, m.recompute_modules = 'selective', ['moe_act', 'layernorm']",
        "m.recompute_method = m.recompute_num_layers = None",
        "m.fine_grained_activation_offloading, m.offload_modules = True, ['core_attn', 'attn_proj']",
        "m.virtual_pipeline_model_parallel_size = 2",
        "cfg.mixed_precision = 'bf16_with_fp8_current_scaling_mixed'",
        "m.moe_token_dispatcher_type = 'alltoall'",
        "m.moe_expert_capacity_factor, m.moe_pad_expert_input_to_capacity = 1.0, True",
        "m.moe_shared_expert_intermediate_size, m.moe_shared_expert_overlap = 768, True",
        "m.moe_router_padding_for_quantization = True",
    ),
    "dense, context parallelism, one graph of the iteration, stages of unequal size": (
        "m.num_moe_experts = m.moe_ffn_hidden_size = None",
        "m.expert_model_parallel_size, m.moe_token_dispatcher_type = 1, 'allgather'",
        "m.context_parallel_size, m.tensor_model_parallel_size, m.cp_comm_type = 2, 2, 'p2p'",
        NO_RECOMPUTE,
        "m.cuda_graph_impl, m.cuda_graph_scope = 'local', ['full_iteration']",
        "cfg.rerun_state_machine.check_for_nan_in_loss = False",
        "cfg.rng.te_rng_tracker = True",
        "cfg.mixed_precision = None",
        "m.num_layers_in_first_pipeline_stage, m.num_layers_in_last_pipeline_stage = 20, 28",
    ),
    "deterministic, sample-based, CPU offload, Megatron FSDP, decentralized groups": (
        "m.deterministic_mode, m.cross_entropy_loss_fusion = True, False",
        "cfg.dist.use_decentralized_pg, cfg.dist.use_gloo_process_groups = True, False",
        NO_RECOMPUTE,
        "m.pipeline_model_parallel_size = 1",
        "m.cpu_offloading, m.cpu_offloading_num_layers = True, 4",
        "cfg.train.train_samples, cfg.train.train_iters = 1000000, None",
        "cfg.scheduler.lr_warmup_iters, cfg.scheduler.lr_decay_iters = 0, None",
        "cfg.checkpoint.save = cfg.checkpoint.load = None",
        "cfg.dist.use_megatron_fsdp = cfg.ddp.use_megatron_fsdp = True",
    ),
}
SAMPLES: dict[str, tuple[Any, ...]] = {
    "text": ("three_walls", "48"),
    "word": ("three_walls",),
    "integer": (7, 0),
    "fraction": (1.5,),
    "flag": (True, False),
    "list": (["three_walls"], []),
    "mapping": ({"three_walls": 1},),
    "nothing": (None,),
}
"""Values of each kind. Of a list that is one already, the elements are tried instead (``element``, ``word``)."""
OBJECTS = ("object", "dtype", "callable", "dict", "any")


def main(release: str) -> None:
    """Measure one release and write its file."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    _isolate()
    from stubs import install_stubs

    install_stubs(REQUEST)
    os.environ |= ENVIRONMENT
    configurations = {name: _make_configuration(lines) for name, lines in CONFIGURATIONS.items()}
    for name, config in configurations.items():
        if not _is_accepted(copy.deepcopy(config)):
            raise SystemExit(f"{name}: Megatron-Bridge {release} refuses this configuration without a change")
    schema = yaml.safe_load((SCHEMAS / f"{release}.yaml").read_text(encoding="utf-8"))
    text = "\n".join(_write(release, schema["sections"], list(configurations.values()))) + "\n"
    out = SCHEMAS / "type-mismatches" / f"{release}.yaml"
    out.parent.mkdir(exist_ok=True)
    out.write_text(text, encoding="utf-8")
    # Nothing is printed: Bridge opens a path that is set to true as file descriptor 1, stdout, and closes it.


def _isolate() -> None:
    """Hide what differs between machines: variables, files of the folder, packages, what the parent left open."""
    os.closerange(3, 256)
    os.environ.clear()
    os.environ |= ENVIRONMENT
    os.chdir(tempfile.mkdtemp())
    _PackageFinder.hidden = _packages_beyond(PACKAGES)
    sys.meta_path[sys.meta_path.index(PathFinder)] = _PackageFinder


class _PackageFinder(PathFinder):
    """Finds what Python finds, but for ``hidden`` packages and ``megatron.energon``, which has Bridge's first name."""

    hidden: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_hidden = fullname.partition(".")[0] in cls.hidden or fullname == "megatron.energon"
        return None if is_hidden else super().find_spec(fullname, path, target)


def _packages_beyond(needs: tuple[str, ...]) -> frozenset[str]:
    """Installed top-level packages that neither belong to ``needs`` nor to what those require."""
    from packaging.requirements import Requirement

    kept: set[str] = set()
    waiting = list(needs)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in kept:
            continue
        kept.add(name)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for line in importlib.metadata.requires(name) or ():
                requirement = Requirement(line)
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    waiting.append(requirement.name)
    installed = importlib.metadata.packages_distributions().items()
    beyond = (name for name, owners in installed if not kept & {owner.lower().replace("_", "-") for owner in owners})
    return frozenset(beyond) - {"megatron"}


def _make_configuration(lines: tuple[str, ...]) -> Any:
    from bridge_runner import find_recipe

    for name in RECIPES:
        with contextlib.suppress(LookupError):
            config = find_recipe(name)()
            exec("\n".join(lines), {"cfg": config, "m": config.model})
            return config
    raise SystemExit(f"Megatron-Bridge has none of {', '.join(RECIPES)}")


def _write(release: str, sections: dict[str, Any], configurations: list[Any]) -> Iterator[str]:
    """Lines of the file."""
    refused: dict[str, list[str]] = {}
    sometimes: dict[str, list[str]] = {}
    not_tried: list[str] = []
    for path, field in _fields(sections):
        for kind, values in _mismatched_values(field):
            answers = {
                is_accepted
                for configuration in configurations
                for value in values
                for is_accepted in _try_value(configuration, path, value)
            }
            if not answers and path not in not_tried:
                not_tried.append(path)
            elif answers == {False}:
                refused.setdefault(path, []).append(kind)
            elif len(answers) == 2:
                sometimes.setdefault(path, []).append(kind)
    yield f"# Made by tools/bridge_type_mismatches.py by asking Megatron-Bridge {release} itself; do not edit."
    yield f"bridge: {json.dumps(release)}"
    yield f"configurations: {json.dumps(list(CONFIGURATIONS))}"
    yield "refused:"
    yield from (f"  {path}: [{', '.join(kinds)}]" for path, kinds in refused.items())
    yield "sometimes:"
    yield from (f"  {path}: [{', '.join(kinds)}]" for path, kinds in sometimes.items())
    yield "not_tried:"
    yield from (f"  - {path}" for path in not_tried)


def _fields(sections: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, section in sections.items():
        yield name, section["itself"]
        yield from ((f"{name}.{field}", found) for field, found in section["fields"].items())


def _mismatched_values(field: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Kinds of values that do not fit the field, with samples."""
    kinds = [field["type"]] if isinstance(field["type"], str) else field["type"]
    lists = [kind for kind in kinds if kind.startswith("list[")]
    if "any" in kinds:
        return
    if "str" in kinds:
        yield "word", SAMPLES["word"]
    elif field.get("values"):
        yield "word", SAMPLES["integer"][:1]
    if "str" not in kinds:
        yield "text", SAMPLES["text"]
    if not {"int", "float"} & set(kinds):
        yield "integer", SAMPLES["integer"]
    if "float" not in kinds:
        yield "fraction", SAMPLES["fraction"]
    if "bool" not in kinds:
        yield "flag", SAMPLES["flag"]
    if lists:
        takes_text = any("str" in kind or "enum" in kind for kind in lists)
        yield "element", ([7] if takes_text else ["three_walls"],)
        if takes_text and "str" not in kinds:
            yield "word", (["three_walls"],)
    else:
        yield "list", SAMPLES["list"]
    if not any(kind.startswith(OBJECTS) for kind in kinds):
        yield "mapping", SAMPLES["mapping"]
    if "null" not in kinds and field.get("default", "") is not None:
        yield "nothing", SAMPLES["nothing"]


def _try_value(configuration: Any, path: str, value: Any) -> Iterator[bool]:
    """Whether Bridge accepts the value there; nothing where the configuration has no such field."""
    section, _, field = path.partition(".")
    part = getattr(configuration, section)
    if field and (part is None or isinstance(part, str) or not hasattr(part, field)):
        return
    for sample in _samples(getattr(part, field) if field else part, value):
        changed = copy.deepcopy(configuration)
        target = getattr(changed, section) if field else changed
        setattr(target, field or section, _as_bridge_reads(target, field, sample))
        yield _is_accepted(changed)


def _samples(present: Any, value: Any) -> Iterator[Any]:
    """The value; where a fraction is tried for a whole number, also that number as a fraction (``4.0``)."""
    yield copy.deepcopy(value)
    if isinstance(value, float) and isinstance(present, int) and not isinstance(present, bool):
        yield float(present)


def _as_bridge_reads(part: Any, field: str, value: Any) -> Any:
    """Bridge reads a text as a dtype where a dtype stands (omegaconf_utils._apply_overrides)."""
    import torch

    if field and isinstance(value, str) and isinstance(getattr(part, field), torch.dtype):
        return getattr(torch, value, value)
    return value


def _is_accepted(config: Any) -> bool:
    from megatron.bridge.training.config import runtime_config_update

    before = dict(os.environ)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            runtime_config_update(config)
    except Exception:  # whatever it raises, the launch stops
        return False
    finally:  # Bridge sets the variables of env_vars
        os.environ.clear()
        os.environ |= before
    return True


if __name__ == "__main__":
    main(sys.argv[1])
