"""The examples of docs/attaching.md: shells accept them, and they run, with a fake launcher and profiler."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.capture.fake_nsys import calls_of, make_fake_nsys
from tests.paths import REPOSITORY
from three_walls.cli.attach import attach_command
from three_walls.megatron.settings.launchers import find_program

PAGE = (REPOSITORY / "docs" / "attaching.md").read_text()
SCRIPTS: list[str] = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
LAUNCHES = [script for script in SCRIPTS if " attach " in script]
(POD,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
LAUNCHER = """#!/bin/sh
while [ "$1" != three-walls ]; do shift; done
RANK=0 WORLD_SIZE=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 SLURM_JOB_ID=7 exec "$@"
"""


def container_command() -> list[str]:
    template = yaml.safe_load(POD)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    command: list[str] = template["spec"]["containers"][0]["command"]
    return command


def attached(words: list[str]) -> list[str]:
    return words[words.index("attach") + 1 :]


@pytest.mark.parametrize("script", SCRIPTS)
def test_bash_reads_every_example(script: str) -> None:
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_every_option_of_the_page_exists() -> None:
    commands = [shlex.split(script.replace("\\\n", ""), comments=True) for script in LAUNCHES]
    assert len(commands) == 2
    for words in [*commands, container_command()]:
        context = attach_command.make_context("attach", attached(words))
        assert find_program(context.params["command"]).script in ("pretrain_gpt.py", "run_recipe.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [*(script for script in SCRIPTS if " attach " in script), shlex.join(container_command())]
)
def test_every_launch_runs_and_leaves_what_the_page_names(tmp_path: Path, script: str) -> None:
    (tmp_path / "export").write_text("an export")
    nsys = make_fake_nsys(tmp_path / "bin", tmp_path / "export")
    programs = {
        "srun": LAUNCHER,
        "torchrun": LAUNCHER,
        "python": "#!/bin/sh\necho training $RANK\n",
        "three-walls": f'#!/bin/sh\nexec {sys.executable} -m three_walls "$@"\n',
    }
    for name, text in programs.items():
        (nsys.parent / name).write_text(text)
        (nsys.parent / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{nsys.parent}:/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
    script = script.replace("/shared", str(tmp_path)).replace("three-walls attach", "three-walls attach --no-analyze")
    script = script.replace("three-walls' attach", "three-walls' attach --no-analyze")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"training 0\n"), done.stderr
    assert calls_of(nsys.parent) == ["profile", "export"]
    (directory,) = (tmp_path / "profiles").iterdir()
    left = {path.name for path in directory.iterdir()}
    assert left == {f"rank0{suffix}" for suffix in (".log", ".nsys-rep", ".sqlite", ".nsys.log", ".json")}
    assert all(f"`{name}`" in PAGE for name in left)
