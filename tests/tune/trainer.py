"""A trainer that writes Megatron's iteration lines as a JSON file, named by $TRAINER, and its overrides tell it.

    {"effects": {"a=1": -0.1}, "together": {"a=1 b=1": 0.2}, "drift": 0.03, "noise": 0.01, "pause_s": 0.001,
     "fails": {"c=1": "oom" | "crash" | "hang" | "stays" | "killed"}, "breaks": {"1": "network"}, "iterations": 25,
     "arguments": {"micro_batch_size": 1}, "batch_sizes": {"--micro-batch-size": 16}}

Effects are logarithms of factors on the step. What breaks is a run, by its number, whatever its overrides. Arguments
are printed as Megatron-LM prints those that it runs with. Of several ranks (SLURM_PROCID) the last one writes, as
Megatron's does.
Every process that it starts has the file's path on its command line; one of them leaves the session, as torchrun's
workers do.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

STEP_MS = 200.0


def main() -> None:
    told_by = Path(os.environ["TRAINER"])
    told = json.loads(told_by.read_text())
    words = sys.argv[1:]
    rank, last = int(os.environ.get("SLURM_PROCID", 0)), int(os.environ.get("SLURM_NTASKS", 1)) - 1
    runs = told_by.with_suffix(f".runs{rank or ''}")
    with runs.open("a") as file:
        file.write(" ".join(words) + "\n")
    number = len(runs.read_text().splitlines())
    child = "import time; time.sleep(600)"
    subprocess.Popen([sys.executable, "-I", "-S", "-c", child, str(told_by)], start_new_session=True)
    fails = next((how for word, how in told.get("fails", {}).items() if set(word.split()) <= set(words)), "")
    fails = told.get("breaks", {}).get(str(number), fails)
    log = sum(effect for word, effect in told.get("effects", {}).items() if word in words)
    log += sum(effect for pair, effect in told.get("together", {}).items() if set(pair.split()) <= set(words))
    log += told.get("drift", 0.0) * math.sin(number / 5)
    rng = random.Random(number)
    for path in (word.partition("=")[2] for word in words if word.startswith("logger.save_config_filepath=")):
        Path(path).write_text(json.dumps({"model": {"moe_grouped_gemm": "model.moe_grouped_gemm=true" in words}}))
    if fails == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for name, value in told.get("arguments", {}).items():
        lines = f"{' arguments ':-^59}", f"  {name} {'.' * (47 - len(name))} {value}", f"{' end of arguments ':-^59}"
        print(*lines, sep="\n", flush=True)  # noqa: T201
    if told.get("saves"):
        print("saving checkpoint at iteration       0 to checkpoints in torch_dist format", flush=True)  # noqa: T201
    batch_size = next((size for word, size in told.get("batch_sizes", {}).items() if word in words), 8)
    for iteration in range(1, told.get("iterations", 25) + 1):
        if iteration == 15 and fails == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if iteration == 4 and fails == "oom":
            sys.exit(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
                "of 79.11 GiB of which 1.00 GiB is free."
            )
        if iteration == 4 and fails == "crash":
            raise AssertionError("hidden size has to be divisible")
        if iteration == 4 and fails == "network":
            raise RuntimeError("NCCL error in: NCCLUtils.hpp:268, unhandled system error, NCCL version 2.28.9")
        if iteration == 4 and fails in ("hang", "stays"):
            time.sleep(600)
        step_ms = STEP_MS * math.exp(log + rng.gauss(0, told.get("noise", 0.0))) * (3 if iteration < 3 else 1)
        if rank != last:
            time.sleep(told.get("pause_s", 0.001))
            continue
        print(  # noqa: T201
            f" [2026-01-01 00:00:{iteration:02d}.000] iteration {iteration:8d}/     500 | consumed samples: 8 | "
            f"elapsed time per iteration (ms): {step_ms:.2f} | learning rate: 1.0E-06 | "
            f"global batch size: {batch_size:5d} | "
            "lm loss: 1.0E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |",
            flush=True,
        )
        time.sleep(told.get("pause_s", 0.001))


if __name__ == "__main__":
    main()
