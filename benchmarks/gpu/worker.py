"""One rank: imports Megatron-Bridge, then trains what the files job0.json, job1.json, ... in its folder ask for.

    python worker.py RECIPES MODELS FOLDER

Importing takes longer than a short training, so a training runs in a fork of this process, if a fork can use the GPU:
the file ``ready`` says ``forks`` or ``once``. A job holds ``recipe``, ``overrides`` (as Megatron-Bridge's command line
takes them), ``environment``, ``log`` (where the output goes), ``fork``, ``limit_s``, ``faults`` (see faults.py) and
``ranges_in_steps`` ("all", "none" or "every other" step of the profiled ones pushes NVTX ranges). Its exit status is
written to status0, status1, ... A file ``stop`` ends the process. Packages that Megatron-Bridge imports and no training
uses are replaced where they are missing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import json
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faults

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = "megatron.bridge.recipes"
APEX_KERNELS = "fused_weight_gradient_mlp_cuda"
"""APEX's extension, with which Megatron Core adds the gradient of the language-model head."""
UNUSED = ("nvidia_resiliency_ext", "modelopt", "diffusers", "wandb")
"""Packages that Megatron-Bridge imports for restarts, images and logging services."""


def main() -> None:
    recipes, models, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    import_bridge(models)
    module = import_recipes(recipes)
    can_fork = run_forked(lambda: importlib.import_module("torch").cuda.init()) == 0
    write(folder / "ready", "forks" if can_fork else "once")
    for number in itertools.count():
        job_file = folder / f"job{number}.json"
        while not job_file.exists():
            if (folder / "stop").exists():
                return
            time.sleep(0.02)
        job = json.loads(job_file.read_text())
        start = run_forked if job["fork"] else as_status
        status = start(partial(run, job, module))
        write(folder / f"status{number}", str(status))


def write(path: Path, text: str) -> None:
    """Write a file that its reader never sees half written."""
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def import_recipes(recipes: str) -> types.ModuleType:
    """The module of a name below RECIPES, or of a Python file."""
    if not recipes.endswith(".py"):
        return importlib.import_module(f"{RECIPES}.{recipes}")
    spec = importlib.util.spec_from_file_location(Path(recipes).stem, recipes)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_bridge(models: str) -> None:
    # Asking for a GPU must not start CUDA: a fork could not use it then.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    sys.path.insert(0, str(REPOSITORY / "three_walls" / "bridge" / "real_bridge"))
    stubs = importlib.import_module("stubs")
    missing = tuple(name for name in UNUSED if importlib.util.find_spec(name) is None)
    sys.meta_path.append(stubs._StandInFinder(missing))
    world_size = os.environ["WORLD_SIZE"]
    stubs.install_stubs({"models": models})
    os.environ["WORLD_SIZE"] = world_size  # the stand-ins take it for that of a single process, and drop it
    use_compiled_helpers()
    importlib.import_module("megatron.bridge.training.pretrain")
    importlib.import_module("megatron.bridge.training.gpt_step")
    if importlib.util.find_spec(APEX_KERNELS) is None:
        accumulate_without_apex()
    if "modelopt" in missing:  # what a stand-in returns is not None, and would change the shapes that stages exchange
        for module in ("train", "eval"):
            training: Any = importlib.import_module(f"megatron.bridge.training.{module}")
            training.get_tensor_shapes_adjust_fn_for_distillation = lambda *_, **__: None


def use_compiled_helpers() -> None:
    """Let a training take the dataset helpers that the wheel of Megatron Core holds. Some releases compile them in any
    case, by a Makefile that the wheel lacks, and exit."""
    utils: Any = importlib.import_module("megatron.core.datasets.utils")
    has_makefile = (Path(utils.__file__).parent / "Makefile").exists()
    if not has_makefile and importlib.util.find_spec("megatron.core.datasets.helpers_cpp"):
        utils.compile_helpers = lambda: None


def accumulate_without_apex() -> None:
    """Let ``gradient_accumulation_fusion`` train without APEX: the head's gradient is a GEMM and an addition, as it is
    unfused, and the layers of Transformer Engine fuse theirs."""
    kernels: Any = types.ModuleType(APEX_KERNELS)

    def add_gradient(layer_input: Any, output_gradient: Any, main_gradient: Any) -> None:
        main_gradient.add_(output_gradient.t().matmul(layer_input))

    kernels.wgrad_gemm_accum_fp32 = kernels.wgrad_gemm_accum_fp16 = add_gradient
    layers: Any = importlib.import_module("megatron.core.tensor_parallel.layers")
    sys.modules[APEX_KERNELS] = layers.fused_weight_gradient_mlp_cuda = kernels
    layers._grad_accum_fusion_available = True


def run_forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(as_status(work))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def as_status(work: Callable[[], None]) -> int:
    """0, or 1 after an exception, which standard error then ends with."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def run(job: dict[str, Any], recipes: types.ModuleType) -> None:
    """Train, with all output in the job's log. A training that hangs ends with SIGALRM."""
    signal.alarm(job["limit_s"])
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(job["environment"])
    if job["ranges_in_steps"] != "all":
        push_fewer_ranges(every_other=job["ranges_in_steps"] == "every other")
    with faults.injected(job["faults"], int(os.environ["LOCAL_RANK"])):
        train(job, recipes)


def push_fewer_ranges(*, every_other: bool) -> None:
    """Let Megatron-Bridge start the profiler without its NVTX ranges, or with those of every other step."""
    profiler: Any = importlib.import_module("torch.autograd.profiler")
    training: Any = importlib.import_module("megatron.bridge.training.train")
    emit_nvtx, train_step = profiler.emit_nvtx, training.train_step
    steps = itertools.count()
    profiling = False

    def start(**_: Any) -> contextlib.AbstractContextManager[None]:
        nonlocal profiling
        profiling = True
        return contextlib.nullcontext()

    def step(*arguments: Any, **keywords: Any) -> Any:
        with emit_nvtx() if profiling and every_other and next(steps) % 2 else contextlib.nullcontext():
            return train_step(*arguments, **keywords)

    profiler.emit_nvtx, training.train_step = start, step


def train(job: dict[str, Any], recipes: types.ModuleType) -> None:
    from megatron.bridge.training.config import ProfilingConfig
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    config = getattr(recipes, job["recipe"])()
    # Overrides of `profiling.` fail while the recipe has none.
    config.profiling = ProfilingConfig()
    config = process_config_with_overrides(config, cli_overrides=job["overrides"])
    pretrain(config, faults.delayed(forward_step, job["faults"], int(os.environ["LOCAL_RANK"])))


if __name__ == "__main__":
    main()
