"""Whatever the program offers for pasting is safe in a shell, with names that an attacker chose.

Each command is checked by ``sh -n``, then run in a directory of stubs, which write down what they were given.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tests.report.sample_report import sample_report, without_plan
from three_walls.advice.finding import ConditionalLines, Overrides, PlannedEdit
from three_walls.advice.format.load_rules import load_rules
from three_walls.bridge.render_overrides import spell
from three_walls.capture.capture_commands import CaptureRequest, make_recipe
from three_walls.cli.capture import format_recipe
from three_walls.cli.main import cli
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.errors import InputError, RuleBaseError
from three_walls.lib.resources import RULES_DIR
from three_walls.lib.shell import is_variable, quote_assignment, quote_file, quote_word
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.pipeline import analyze
from three_walls.report.overrides_file import list_forms, render_overrides
from three_walls.report.report import Report
from three_walls.trace.trace_files import plain_sqlite

PLANTED = "PLANTED"
HOSTILE = [
    "a b",
    "it's",
    'say "x"',
    f"$(touch {PLANTED})",
    f"`touch {PLANTED}`",
    f"x; touch {PLANTED}",
    f"x' ; touch {PLANTED} ; '",
    f'x" ; touch {PLANTED} ; "',
    f"x\ntouch {PLANTED}",
    f"x\r\ntouch {PLANTED}\r",
    f"x && touch {PLANTED} #",
    f"x | touch {PLANTED}",
    "x > stolen",
    "\x1b[31mred\x1b[0m",
    "-rf",
    "--force",
    "*",
    "~",
    "{a,b}",
    "back\\slash",
    "%s%n",
    "\u202egnp.exe",
    "\x9b31m",
    "bytes\udcff\udc80",
    "caf\u00e9",
    "!history",
    "#comment",
    "$HOME",
]
WORDS = st.lists(
    st.text("ab1_ \"'$`\\|&;<>()*?~{}!#%=-\n\r\t\x01\x1b\x9b\u202e\udcff\u00e9", min_size=1, max_size=12).filter(
        lambda word: not word.endswith("\n")
    ),
    min_size=1,
    max_size=20,
)
"""Words of what shells and terminals treat in their own way; one that ends in a line break has a test of its own."""
STUB = '#!/bin/sh\nprintf \'%s\\000\' "$#" "$0" "$@" >> "$CALLS"\n'


def for_any_words(test: Callable[..., None]) -> Callable[..., None]:
    """Runs ``test`` with ``words``: those that are known to be hostile, and made ones."""
    few = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
    return few(example(words=HOSTILE)(given(words=WORDS)(test)))


class Shell:
    """A directory in which nsys, three-walls, torchrun, srun, python and pip only write down how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        stubs = folder / "stubs"
        stubs.mkdir()
        self.calls_file = folder / "calls"
        for name in ("nsys", "three-walls", "torchrun", "srun", "python", "pip"):
            (stubs / name).write_text(STUB)
            (stubs / name).chmod(0o755)
        self.environment = {"PATH": f"{stubs}:{os.environ['PATH']}", "CALLS": str(self.calls_file), "HOME": "/nowhere"}

    def run(self, script: str) -> list[list[str]]:
        """Run ``script``, and return the calls of stubs, with their names; fails if it did anything else."""
        text = os.fsencode(script)
        assert all(line.isprintable() for line in script.split("\n")), script
        checked = subprocess.run(["sh", "-n", "-c", text], capture_output=True, check=False)
        assert checked.returncode == 0, (script, checked.stderr)
        self.calls_file.write_bytes(b"")
        before = sorted(self.folder.iterdir())
        done = subprocess.run(
            ["sh", "-c", text], cwd=self.folder, env=self.environment, capture_output=True, check=False, timeout=30
        )
        assert done.returncode == 0, (script, done.stderr)
        assert sorted(self.folder.iterdir()) == before, script
        words = list(map(os.fsdecode, self.calls_file.read_bytes().split(b"\0")[:-1]))
        calls = []
        while words:
            end = 2 + int(words[0])
            calls.append([Path(words[1]).name, *words[2:end]])
            del words[:end]
        return calls


@pytest.fixture(scope="module")
def report() -> Report:
    return sample_report()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def is_the_file(word: str, name: str) -> bool:
    """Whether a program that is given ``word`` opens the file ``name`` and takes it for no option."""
    return not word.startswith("-") and os.path.normpath(word) == name


@for_any_words
def test_quoted_words_are_read_back_by_every_shell(words: list[str]) -> None:
    script = "; ".join(f"printf '%s\\0' {quote_word(word)}" for word in words)
    assert script.isprintable()
    for program in ("sh", "bash"):
        done = subprocess.run([program, "-c", os.fsencode(script)], capture_output=True, check=True)
        assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in words]
    assert not any(quote_file(word).startswith("-") for word in words)


@pytest.mark.parametrize("word", ["", "ends\n", "\n"])
def test_a_word_that_ends_in_a_line_break_is_read_back_by_bash(word: str) -> None:
    command = ["bash", "-c", f"printf '%s.' {quote_word(word)}"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == f"{word}.".encode()


@pytest.mark.parametrize("name", ["A", "_x1", "NCCL_DEBUG"])
def test_a_variable_has_a_name_that_shells_accept(name: str) -> None:
    assert is_variable(name)
    assert quote_assignment(name, "a b") == f"{name}='a b'"


@pytest.mark.parametrize("name", ["", "1A", "A-B", f"X=1; touch {PLANTED}; Y", "A\n", "caf\u00e9", "A B", "$(x)"])
def test_any_other_name_is_refused(name: str) -> None:
    assert not is_variable(name)
    with pytest.raises(ValueError, match="expected the name of a variable"):
        quote_assignment(name, "1")


@for_any_words
def test_the_command_that_exports_a_report_names_exactly_that_file(
    tmp_path: Path, shell: Shell, words: list[str]
) -> None:
    commands = []
    for word in words:
        path = tmp_path / f"{word}.nsys-rep"
        path.write_bytes(b"no database")
        with pytest.raises(InputError) as caught, plain_sqlite(path):
            pass
        commands.append(str(caught.value).partition("; run: ")[2])
    for call, word in zip(shell.run("\n".join(commands)), words, strict=True):
        assert call[:-1] == ["nsys", "export", "--type", "sqlite"]
        assert is_the_file(call[-1], f"{word}.nsys-rep")


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("name", HOSTILE[::5])
def test_the_command_that_scrubs_names_exactly_that_file(tmp_path: Path, shell: Shell, name: str) -> None:
    path = tmp_path / f"{name}.sqlite"
    TraceBuilder().steps(4).launched_as("python x.py", SECRET_TOKEN="abc").write(path)
    report = analyze([path])
    (warning,) = (warning.message for warning in report.warnings if warning.code == "secrets-in-trace")
    (call,) = shell.run(warning.partition("it, run: ")[2])
    assert call[:2] + call[3:] == ["three-walls", "scrub", "scrubbed.sqlite"]
    assert is_the_file(call[2], path.name)


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
@for_any_words
def test_a_capture_recipe_hands_on_every_word_of_the_command(shell: Shell, launcher: str, words: list[str]) -> None:
    command = (
        launcher,
        "run_recipe.py",
        *(option for word in words for option in ("--recipe", word, f"model.x={word}")),
    )
    request = CaptureRequest(
        launcher, "bridge", 10, 14, (0, 1), command=(*(f"RUN_NAME={word}" for word in words), *command)
    )
    text = format_recipe(make_recipe(request))
    call = next(call for call in shell.run(text.replace("mkdir -p profiles", ":")) if call[0] == launcher)
    at = call.index("run_recipe.py")
    assert call[at : at + 1 + 3 * len(words)] == list(command[1:])
    for line in text.splitlines():
        assert not line or line.startswith("#") or shlex.split(line)


@for_any_words
def test_a_variable_set_before_the_command_stays_one(tmp_path: Path, shell: Shell, words: list[str]) -> None:
    (tmp_path / "stubs" / "torchrun").write_text("#!/bin/sh\nprintf '%s\\000' \"$NAME\"\n")
    (tmp_path / "profiles").mkdir(exist_ok=True)
    lines = []
    for word in words:
        command = (f"NAME={word}", "torchrun", "run_recipe.py")
        recipe = format_recipe(make_recipe(CaptureRequest("torchrun", "bridge", 10, 14, (0,), command=command)))
        lines.append(next(line for line in recipe.splitlines() if "nsys profile" in line))
    done = subprocess.run(
        ["sh", "-c", os.fsencode("\n".join(lines))],
        env=shell.environment,
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in words]


@for_any_words
def test_a_line_of_overrides_hands_over_the_value_as_it_is(shell: Shell, words: list[str]) -> None:
    edits = [PlannedEdit(f"NCCL_X{number:02}", None, word, "env", False) for number, word in enumerate(words)]
    overrides = spell(edits, RunConfig(), "0.6.2")
    kept = {edit.key: edit.to for edit in edits if str(edit.to).isprintable()}
    assert overrides.env == kept
    assert sum("holds control characters" in note for note in overrides.notes) == len(words) - len(kept)
    if not kept:
        return
    odd = replace(sample_report(), overrides=overrides)
    (shell.folder / "overrides.txt").write_text(render_overrides(odd), encoding="utf-8")
    values = " ".join(f'"${key}"' for key in kept)
    assert shell.run(f"{recipe_of(odd, 'environment')}; three-walls {values}") == [["three-walls", *kept.values()]]
    ((name, *lines),) = shell.run(recipe_of(odd, "the rest").replace("YOUR_FLAGS", ""))
    assert (name, [line.partition("=")[0] for line in lines[-len(kept) :]]) == (
        "torchrun",
        [f"++env_vars.{key}" for key in kept],
    )


def recipe_of(report: Report, kind: str) -> str:
    """The command of overrides.txt's head for lines of ``kind``."""
    line = next(line for line in render_overrides(report).splitlines() if f"  {kind}  " in line)
    return line[line.index("  ", line.index(kind)) :].replace("Megatron-Bridge", "").strip()


@pytest.mark.parametrize("key", [f"X=1; touch {PLANTED}; Y", "A\nB", "caf\u00e9"])
def test_a_rule_cannot_set_what_is_no_variable(tmp_path: Path, key: str) -> None:
    write_rule(tmp_path, {"env": key, "to": "1"})
    with pytest.raises(RuleBaseError, match=r"letters, digits and _|expected text"):
        load_rules(RULES_DIR, tmp_path, definitions=DEFINITIONS)


@pytest.mark.parametrize("value", ["a\nb", "\u202ex"])
def test_a_rule_cannot_set_a_variable_to_control_characters(tmp_path: Path, value: str) -> None:
    write_rule(tmp_path, {"env": "NCCL_DEBUG", "to": value})
    with pytest.raises(RuleBaseError, match="control characters"):
        load_rules(RULES_DIR, tmp_path, definitions=DEFINITIONS)


def test_a_rule_may_set_a_variable_to_any_other_text(tmp_path: Path) -> None:
    write_rule(tmp_path, {"env": "NCCL_DEBUG", "to": f"$(touch {PLANTED})"})
    assert load_rules(RULES_DIR, tmp_path, definitions=DEFINITIONS)


def write_rule(folder: Path, edit: dict[str, str]) -> None:
    done = CliRunner().invoke(cli, ["rules", "new", "my-rule", "--wall", "communication", "--into", str(folder)])
    assert done.exit_code == 0, done.output
    path = folder / "communication" / "my-rule.yaml"
    lines = path.read_text().splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("edits:"))
    end = next(index for index in range(at + 1, len(lines)) if lines[index] and not lines[index].startswith((" ", "-")))
    path.write_text("\n".join([*lines[: at + 1], f"  - {json.dumps(edit)}", *lines[end:]]) + "\n")


@for_any_words
def test_no_line_to_copy_leaves_its_quotes(shell: Shell, words: list[str]) -> None:
    """Whatever a caller puts into Overrides; the program itself puts only checked values there."""
    flags = tuple(f"--flag {word}" for word in words)
    bridge = tuple(f"model.x={word}" for word in words)
    variables = {f"X{number:02}": word for number, word in enumerate(words)}
    odd = Overrides("0.6.2", bridge, flags, variables, conditional=(ConditionalLines("bridge", words[0], bridge),))
    forms = {name: lines for name, _, lines in list_forms(odd)}
    values = " ".join(f'"${key}"' for key in variables)
    copied = " ".join((*forms["bridge"], *forms["conditional-1"]))
    assert shell.run("\n".join((*forms["env"], f"three-walls {values} {copied}"))) == [
        ["three-walls", *words, *bridge, *bridge]
    ]
    assert shell.run(f"three-walls {' '.join(forms['megatron-lm'])}") == [["three-walls", *" ".join(flags).split(" ")]]
    text = render_overrides(replace(sample_report(), overrides=odd))
    for line in text.splitlines():
        assert line.startswith(("#", "export ", "--", "'model.x=", '"$(printf', "model.x=")) or not line
    shell.run("\n".join(line for line in text.splitlines() if line.startswith("#")))


@pytest.mark.parametrize("name", [f"X=1; touch {PLANTED}; Y", "A\nB", "$(touch P)", ""])
def test_what_is_no_name_of_a_variable_is_a_comment(shell: Shell, report: Report, name: str) -> None:
    odd = replace(report, overrides=Overrides("0.6.2", (), (), {name: "1"}))
    assert shell.run(render_overrides(odd)) == []
    assert "export" not in render_overrides(odd).split("not both.")[1]


@pytest.mark.parametrize("title", [f"x\ntouch {PLANTED}", f"x\r$(touch {PLANTED})", f"x\u2028touch {PLANTED}"])
def test_a_title_stays_a_comment(shell: Shell, report: Report, title: str) -> None:
    step = report.plan[0]
    odd = replace(step, finding=replace(step.finding, title=title), edits=())
    assert shell.run(render_overrides(replace(report, plan=(odd,)))) == []
    assert shell.run(render_overrides(without_plan(report))) == []


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("name", HOSTILE[::4])
def test_the_command_that_tests_a_new_rule_names_its_directory(
    tmp_path: Path, shell: Shell, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = CliRunner().invoke(cli, ["rules", "new", "my-rule", "--wall", "memory", f"--into={name}"])
    assert done.exit_code == 0, done.output
    (call,) = shell.run(done.output.rstrip("\n").partition("then run: ")[2])
    assert call[:3] == ["three-walls", "rules", "test"]
    assert is_the_file(call[3], name)


@pytest.mark.parametrize("line", [f"export X=1;touch={PLANTED}", "export A-B=1", "export 'A B=1'"])
def test_verify_sets_no_variable_of_another_name(tmp_path: Path, line: str) -> None:
    (tmp_path / "overrides.txt").write_text(f"{line}\n")
    done = CliRunner().invoke(cli, ["verify", str(tmp_path / "overrides.txt"), "--recipe", "x"])
    assert isinstance(done.exception, InputError) == (";" not in line)
