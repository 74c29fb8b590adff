"""Stubs for what Megatron-Bridge needs of a GPU machine, so that its configuration classes run on any CPU.

Only the standard library and Megatron-Bridge's own dependencies are imported: this runs in their interpreter. These are
replaced, in the order in which an import or a validation reaches them, and only where the real one is missing:

1. CUDA's device properties, which decide whether the GPU can run DeepEP: those of the GPU that the request names.
2. Transformer Engine: some modules import it without using it, others read its version. The stub has the version of
   the request. Megatron Core is imported before the stub is in place, so that Core takes its paths without it.
3. Fused kernels that Core asserts, and Bridge's checks whether fusions are available: present, as on a GPU machine.
4. ``megatron.energon``, ``modelopt`` and the packages in ``_STAND_INS``: imported by code that no check reaches.
5. ``megatron.bridge.recipes`` imports every model family: only the family of the requested recipe is imported.
6. The model hub, from which a recipe reads a model's shape: a folder of ``<owner>/<model>/config.json`` replaces it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_OPTIONAL_MODULES = [
    "modelopt",
    "modelopt.torch",
    "modelopt.torch.quantization",
    "modelopt.torch.quantization.utils",
    "modelopt.torch.opt",
    "modelopt.torch.opt.plugins",
    "modelopt.torch.opt.plugins.mcore_dist_checkpointing",
    "modelopt.torch.distill",
    "modelopt.torch.distill.plugins",
    "modelopt.torch.distill.plugins.megatron",
    "megatron.energon",
    "megatron.energon.flavors",
    "megatron.energon.flavors.base_dataset",
    "megatron.energon.flavors.webdataset",
    "megatron.energon.task_encoder",
    "megatron.energon.task_encoder.cooking",
    "megatron.energon.task_encoder.base",
    "megatron.energon.epathlib",
]
_STAND_INS = ("tensorboard", "einops", "rich", "six", "datasets", "mlflow", "comet_ml")
"""Packages of which Bridge imports names for logging, data and images, and uses none before a run starts."""
_CORE_MODULES = [
    "megatron.core.utils",
    "megatron.core.distributed",
    "megatron.core.optimizer",
    "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.transformer.moe.moe_layer",
    "megatron.core.models.mamba",
    "megatron.core.models.hybrid",
    "megatron.core.post_training.modelopt.gpt.model_specs",
    "megatron.core.post_training.modelopt.mamba.model_specs",
]


_FUSED_KERNELS = [
    "fused_permute",
    "fused_permute_with_probs",
    "fused_sort_chunks_by_index",
    "fused_sort_chunks_by_index_with_probs",
    "fused_unpermute",
    "fused_topk_with_score_function",
    "fused_compute_score_for_moe_aux_loss",
    "fused_moe_aux_loss",
    "fused_apply_rotary_pos_emb",
    "fused_apply_rotary_pos_emb_thd",
]


def install_stubs(request: dict[str, Any]) -> None:
    """Replace what is missing. ``request``: gpu_name, gpu_major, gpu_minor, transformer_engine, models."""
    os.environ.pop("WORLD_SIZE", None)
    os.environ.setdefault("RANK", "0")
    _replace_optional_packages()
    if importlib.util.find_spec("transformer_engine") is None:
        _add_module("transformer_engine")
        set_machine(request)  # imports below read the version
        _replace_transformer_engine()
    add_bare_package("megatron.bridge.recipes")
    if request.get("models"):
        _read_models_from(Path(request["models"]))


def _replace_optional_packages() -> None:
    """Replace them after Core, which tries to import some, and before any part of Bridge, which needs them."""
    for name in _CORE_MODULES:
        _can_import(name)
    missing = tuple(name for name in _STAND_INS if importlib.util.find_spec(name) is None)
    sys.meta_path.append(_StandInFinder(missing))
    if "tensorboard" in missing:  # PyTorch's part of it looks into TensorFlow when it is imported
        _add_module("torch.utils.tensorboard").__dict__["__getattr__"] = _make_class
    for name in _OPTIONAL_MODULES:
        if not _can_import(name):
            _add_module(name).__dict__["__getattr__"] = _make_class


def add_bare_package(name: str) -> None:
    """Add a package without running its ``__init__``, so that one module of it can be imported alone."""
    if name in sys.modules:
        return
    parent, _, leaf = name.rpartition(".")
    parent_package = importlib.import_module(parent)
    _add_module(name).__path__ = [str(Path(next(iter(parent_package.__path__))) / leaf)]


def set_machine(request: Mapping[str, Any]) -> None:
    """Make this a machine with the GPU and the Transformer Engine of ``request``, unless it has a real one."""
    import megatron.core.utils
    import torch
    from packaging.version import Version

    if not isinstance(sys.modules.get("transformer_engine"), _StubModule):
        return
    version = str(request.get("transformer_engine") or "2.12.0")
    megatron.core.utils._te_version = Version(version)
    sys.modules["transformer_engine"].__dict__["__version__"] = version
    major, minor = int(request.get("gpu_major") or 9), int(request.get("gpu_minor") or 0)
    name = request.get("gpu_name") or "NVIDIA H100 80GB HBM3"
    properties = types.SimpleNamespace(name=name, major=major, minor=minor, total_memory=80 << 30)
    torch.cuda.get_device_properties = lambda *_, **__: properties
    torch.cuda.get_device_capability = lambda *_, **__: (major, minor)


def _replace_transformer_engine() -> None:
    import torch

    for name in ("pytorch", "pytorch.ops", "pytorch.optimizers"):
        module = _add_module(f"transformer_engine.{name}")
        module.__dict__["__getattr__"] = lambda attribute: _make_class(attribute, torch.nn.Module)
    sys.modules["transformer_engine.pytorch.optimizers"].__dict__["FusedAdam"] = _FusedAdam
    _declare_fusions()


class _FusedAdam:
    """Megatron Core inspects these arguments to decide whether the precision-aware optimizer is supported."""

    def __init__(
        self,
        master_weight_dtype: Any = None,
        exp_avg_dtype: Any = None,
        exp_avg_sq_dtype: Any = None,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
    ) -> None: ...


def _declare_fusions() -> None:
    import megatron.bridge.utils.fusions as fusions
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils

    for module in (moe_utils, rope_utils):
        for name in _FUSED_KERNELS:
            if getattr(module, name, None) is None:
                setattr(module, name, _do_nothing)
    for name in [attribute for attribute in vars(fusions) if attribute.startswith("can_enable")]:
        setattr(fusions, name, _return_true)
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("megatron.bridge") and hasattr(module, name):
                setattr(module, name, _return_true)


def _read_models_from(folder: Path) -> None:
    from megatron.bridge.models.conversion.auto_bridge import AutoBridge
    from transformers import AutoConfig

    original: Callable[..., Any] = AutoBridge.from_hf_pretrained.__func__

    def from_folder(cls: Any, path: str, **options: Any) -> Any:
        local = folder / str(path)
        if local.is_dir():
            return cls.from_hf_config(AutoConfig.from_pretrained(local))
        return original(cls, path, **options)

    AutoBridge.from_hf_pretrained = classmethod(from_folder)  # type: ignore[arg-type]


class _StubModule(types.ModuleType):
    """A module that stands for a missing one."""


def _add_module(name: str) -> types.ModuleType:
    module = _StubModule(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, module)  # which `import a.b as b` reads
    return module


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of missing packages: each has every name, as an empty class."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        is_missing = fullname.partition(".")[0] in self._packages or fullname.startswith("torch.utils.tensorboard.")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_missing else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__getattr__"] = _make_class
        module.__dict__["__version__"] = "99.0"


def _make_class(name: str, *bases: type) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    members: dict[str, Any] = {"__class_getitem__": classmethod(lambda cls, _: cls)}
    if not bases:  # some are made with arguments when their module is imported
        members["__init__"] = _do_nothing
    return type(name, bases, members)


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:  # whatever a half-installed package raises, it cannot be used
        return False
    return True


def _do_nothing(*_: Any, **__: Any) -> None:
    return None


def _return_true(*_: Any, **__: Any) -> bool:
    return True
