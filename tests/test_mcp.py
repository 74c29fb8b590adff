"""Agents: the tools as the SDK's own client meets them over stdio, from a trace to a checked override."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from trace_builder import TraceBuilder

from tests.paths import REPOSITORY, SAMPLES
from three_walls.cli.mcp import INSTRUCTIONS
from three_walls.cli.mcp_tools import PAGE_CHARACTERS, Tools
from three_walls.lib.errors import InputError, UsageError
from three_walls.lib.folders import Folders
from three_walls.trace import report_export

VERDICT_CHARACTERS = 3_000
CLIENT_TEXT = "[page 9 of 99]"

Call = Callable[..., Awaitable[str]]


def converse(folder: Path, cwd: Path, talk: Callable[[Any, Call], Awaitable[None]]) -> None:
    """Lets ``talk`` use a client of a server for ``folder``; a result that is an error begins with ERROR."""
    mcp = pytest.importorskip("mcp")

    async def main() -> None:
        command = [sys.executable, "-m", "three_walls", "mcp", str(folder)]
        server = mcp.StdioServerParameters(
            command=command[0], args=command[1:], cwd=cwd, env={"PYTHONPATH": str(REPOSITORY)}
        )
        async with mcp.Client(server) as client:

            async def call(tool: str, **arguments: object) -> str:
                result = await client.call_tool(tool, arguments)
                assert len(result.content) == 1
                text: str = result.content[0].text
                assert len(text) <= PAGE_CHARACTERS + len(CLIENT_TEXT)
                return f"ERROR {text}" if result.is_error else text

            await talk(client, call)

    asyncio.run(main())


@pytest.mark.slow
def test_a_client_gets_from_a_trace_to_a_checked_override(tmp_path: Path) -> None:
    run = tmp_path / "profiles"
    shutil.copytree(SAMPLES / "te-host-bound", run)

    async def talk(client: Any, call: Call) -> None:
        offered = await client.list_tools()
        assert [tool.name for tool in offered.tools] == [tool.__name__ for tool in Tools(Folders([run])).all()]
        sizes = [len(json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in offered.tools]))]
        verdict = await call("analyze", traces=["rank0.sqlite.xz"], logs=["train.log"], config="run_config.yaml")
        assert verdict.startswith("Run r1.\n") and "\nHost-bound" in verdict
        assert len(verdict) <= VERDICT_CHARACTERS
        entry = await call("plan", run="r1", entry=1)
        blocks = re.findall(r"\*\*Megatron-Bridge[^\n]*\*\*\n\n```\n(.*?)\n```", entry, re.DOTALL)
        overrides = [line.strip("'") for line in blocks[0].splitlines()]
        assert overrides
        checked = await call("verify", what=overrides, config="run_config.yaml")
        assert checked.startswith("Valid.\n")
        assert "Megatron-Bridge itself was not run: only three-walls verify runs other programs" in checked
        sizes += map(len, (verdict, entry, checked))
        assert sizes[0] < 8_000
        assert sum(sizes[1:]) < 12_000, sizes
        refused = await call("verify", what=["model.moe_token_dispatcher_typo=flex"], config="run_config.yaml")
        assert refused.startswith("Not valid: an override fails (exit code 1 of the command).")

    converse(run, tmp_path, talk)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(
        path.name for path in (SAMPLES / "te-host-bound").iterdir()
    )


@pytest.mark.slow
def test_errors_have_the_exit_codes_and_reasons_of_the_commands(tmp_path: Path) -> None:
    TraceBuilder().nvtx("idle", 0, 100).write(tmp_path / "no-kernels.sqlite")
    (tmp_path / "no.sqlite").write_text("no trace")
    (tmp_path / "a\x1b[31m.sqlite").write_text("no trace")

    async def talk(client: Any, call: Call) -> None:
        assert client.instructions == INSTRUCTIONS
        answers = {
            ("analyze", "../secret"): "(exit code 2 of the command: usage)",
            ("analyze", "none.sqlite"): "(exit code 3 of the command: an input cannot be read",
            ("analyze", "no.sqlite"): "(exit code 3 of the command: an input cannot be read",
            ("analyze", "no-kernels.sqlite"): "(exit code 4 of the command: no CUDA kernels",
            ("doctor", "no.sqlite"): "(exit code 3 of the command",
        }
        for (tool, trace), reason in answers.items():
            answer = await call(tool, traces=[trace])
            assert answer.startswith("ERROR ")
            assert reason in answer
        assert "\x1b" not in await call("analyze", traces=["a\x1b[31m.sqlite"])
        assert "expected one that analyze named (none yet: analyze first)" in await call("plan", run="r1")

    converse(tmp_path, tmp_path, talk)


@pytest.fixture(scope="module")
def tools() -> Tools:
    tools = Tools(Folders([SAMPLES]))
    tools.analyze(["wide-nvlink-alltoall.sqlite"])
    return tools


@pytest.mark.slow
def test_runs_that_were_analyzed_answer_again_without_being_analyzed(tools: Tools) -> None:
    assert tools.analyze(["wide-nvlink-alltoall.sqlite"]).startswith("Run r1.\n")
    assert tools.whatif("r1", settings=["micro_batch_size=2"]).startswith("Step now   ")
    assert "ep_exposed_ns = " in tools.facts("ep_exposed", "r1")
    assert "    Not the same as:" in tools.facts("ep_exposed_ns")
    assert tools.facts("zzz") == tools.facts("zzz", "r1") == "No name of a fact has 'zzz' in it."
    entries = tools.plan("r1").splitlines()
    assert entries[0].startswith("1. ")
    with pytest.raises(UsageError, match=f"expected one of 1 to {len(entries)}, found 9"):
        tools.plan("r1", entry=9)


@pytest.mark.slow
def test_a_long_section_comes_in_pages_that_hold_all_of_it(tools: Tools) -> None:
    first = tools.section("r1", "findings")
    count = int(re.findall(r"\[page 1 of (\d+)\]$", first)[0])
    pages = [tools.section("r1", "findings", page) for page in range(1, count + 1)]
    assert all(len(page) <= PAGE_CHARACTERS + len(CLIENT_TEXT) for page in pages)
    assert f"findings {count}," in tools.analyze(["wide-nvlink-alltoall.sqlite"])
    with pytest.raises(UsageError, match=f"expected one of 1 to {count}"):
        tools.section("r1", "findings", count + 1)
    with pytest.raises(UsageError, match="did you mean gaps"):
        tools.section("r1", "gap")


@pytest.mark.slow
def test_every_path_that_a_run_to_compare_names_is_checked(tools: Tools) -> None:
    base = "te-host-bound-runs/00-base"
    answer = tools.compare(base, ["te-host-bound-runs/01-micro-batch-2"], fail_if=["step > +3%"])
    assert answer.startswith("# 1.75 times as fast (43.0% shorter)")
    for option in ("log=/etc/hostname", "config=/etc/hostname", "kernel-names=../README.md"):
        with pytest.raises(UsageError, match="found one outside"):
            tools.compare(base, [f"{base},{option}"])
    failed = tools.compare("te-host-bound-runs/01-micro-batch-2", [base], fail_if=["step > +3%"])
    assert failed.startswith("failed: step > +3% (00-base) (exit code 1 of the command)")
    assert "Nothing to try next" in tools.plan_next("te-host-bound-runs")


def test_no_program_is_run_for_a_report_even_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, mark = tmp_path / "nsys", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    (tmp_path / "rank0.nsys-rep").write_bytes(b"report")
    monkeypatch.setenv("NSYS", str(program))
    monkeypatch.setattr(report_export, "_named", [])
    report_export.run_no_nsys()
    with pytest.raises(InputError, match="nsys export"):
        Tools(Folders([tmp_path])).analyze(["rank0.nsys-rep"])
    assert not mark.exists()


def test_the_skill_names_the_tools_there_are() -> None:
    text = (REPOSITORY / "skills" / "three-walls" / "SKILL.md").read_text()
    _, head, body = text.split("---\n", 2)
    described = yaml.safe_load(head)
    assert described["name"] == "three-walls"
    assert len(described["description"]) <= 1024
    tools = {tool.__name__ for tool in Tools(Folders([REPOSITORY])).all()}
    named = set(re.findall(r"\| [^|]* \| (.*) \|", body))
    assert {word for cell in named for word in re.findall(r"`(\w+)`", cell)} & tools == tools
