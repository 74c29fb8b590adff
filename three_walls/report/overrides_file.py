"""The plan's edits as shell text: overrides.txt, a file per entry and launcher, and the lines offered for copying."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from three_walls.advice.finding import ConditionalLines, Overrides, PlanStep
from three_walls.lib.shell import is_variable, quote_assignment, quote_word
from three_walls.lib.text import show_control_characters
from three_walls.report.report import Report

_HOW_TO_USE = """\
# Each line is quoted for the shell. The start of a line shows its kind:
#   "export "  environment       eval "$(grep '^export ' overrides.txt)"
#   "--"       Megatron-LM       grep '^--' overrides.txt | xargs torchrun pretrain_gpt.py YOUR_FLAGS
#   the rest   Megatron-Bridge   grep -vE '^(#|export |--|$)' overrides.txt | xargs torchrun run_recipe.py YOUR_FLAGS
# Use the part of your launcher, not both."""

ENTRIES_DIR = "overrides"
"""Directory of the files per entry, in that of the report."""
_SUFFIXES = {"bridge": ".bridge.txt", "megatron-lm": ".megatron.txt", "env": ".env", "python": ".py"}
"""Form to the end of its file's name."""
_ENTRY_USES = {
    "bridge": "grep -v '^#' {path} | xargs torchrun run_recipe.py YOUR_FLAGS",
    "megatron-lm": "grep -v '^#' {path} | xargs torchrun pretrain_gpt.py YOUR_FLAGS",
    "env": ". {path}",
    "python": "paste it into the recipe, where cfg is its configuration",
}
ENTRY_HEAD = re.compile(r"# three-walls \S+: entry \d+ of the plan, alone: ")
"""How each file of an entry begins, and no file of anybody else."""
ENTRY_NAME = re.compile(rf"\d{{2,4}}-[a-z0-9-]{{1,100}}({'|'.join(map(re.escape, _SUFFIXES.values()))})")


def quote_bridge(lines: Iterable[str]) -> tuple[str, ...]:
    """Hydra overrides, one per line: ``'model.cuda_graph_scope=[attn]'`` (brackets are globs to a shell)."""
    return tuple(map(quote_word, lines))


def quote_megatron_lm(flags: Iterable[str]) -> tuple[str, ...]:
    """Megatron-LM flags, one per line with its values, which single spaces separate; each word is quoted alone."""
    return tuple(" ".join(map(quote_word, flag.split(" "))) for flag in flags)


def quote_env(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Environment variables as ``export NAME=value``. What no variable can be called is a comment."""
    return tuple(
        f"export {quote_assignment(name, value)}"
        if is_variable(name)
        else _comment_line(f"{name!r} is no name of a variable")
        for name, value in variables.items()
    )


def list_forms(overrides: Overrides) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Id, title and lines of each launcher's form, then of the conditional lines; forms without a line are left out."""
    forms = (
        ("env", "Environment", quote_env(overrides.env)),
        ("bridge", f"Megatron-Bridge {overrides.bridge_version}", quote_bridge(overrides.bridge)),
        ("megatron-lm", "Megatron-LM", quote_megatron_lm(overrides.megatron_lm)),
        ("python", "Python, in the recipe", overrides.python),
    )
    conditional = (
        (f"conditional-{number}", title, lines)
        for number, (title, lines) in enumerate(_list_conditional(overrides.conditional), start=1)
    )
    return tuple(form for form in (*forms, *conditional) if form[2])


def _list_conditional(blocks: Iterable[ConditionalLines]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Title and quoted lines of each block that is right under a condition alone."""
    launchers = {"bridge": ("Megatron-Bridge", quote_bridge), "megatron_lm": ("Megatron-LM", quote_megatron_lm)}
    for block in blocks:
        name, quote = launchers.get(block.launcher, ("Python", tuple))
        yield f"{name}: {block.condition}", quote(block.lines)


def render_overrides(report: Report) -> str:
    """Text of overrides.txt; ends with a newline."""
    overrides = report.overrides
    head = f"# three-walls {report.tool_version}: the edits of the plan, all of them."
    if not report.plan:
        return f"{head}\n# The plan is empty: nothing to change.\n"
    if not any(step.edits for step in report.plan):
        return f"{head}\n{_comment_line(f'The plan has no edits: {report.plan[0].finding.title}.')}\n"
    parts = [
        f"{head}\n{_HOW_TO_USE}",
        *_comment("Notes: what no line below can express", overrides.notes),
        *_section("Environment", quote_env(overrides.env)),
        *_section(f"Megatron-Bridge {overrides.bridge_version}", quote_bridge(overrides.bridge)),
        *_section("Megatron-LM", quote_megatron_lm(overrides.megatron_lm)),
        *_comment("The same in Python, for a recipe that is edited", overrides.python),
        *(part for title, lines in _list_conditional(overrides.conditional) for part in _comment(title, lines)),
    ]
    return "\n\n".join(parts) + "\n"


def slug(rule: str) -> str:
    """The id of a rule as a part of a file's name or of an address: ``grouped-gemm``."""
    return re.sub(r"[^a-z0-9]+", "-", rule.lower())[:80].strip("-") or "entry"


def list_entry_files(step: PlanStep) -> dict[str, str]:
    """Form to path, relative to the report's directory, for the forms that have lines for this entry alone.

    A form whose lines are all conditional has a file of comments.
    """
    if step.overrides is None:
        return {}
    forms = {name for name, _, _ in list_forms(step.overrides)}
    forms |= {block.launcher.replace("_", "-") for block in step.overrides.conditional}
    stem = f"{ENTRIES_DIR}/{step.order:02}-{slug(step.rule)}"
    return {form: f"{stem}{suffix}" for form, suffix in _SUFFIXES.items() if form in forms}


def render_entries(report: Report) -> dict[str, str]:
    """Path, relative to the report's directory, to text: a file per entry and form. Each ends with a newline."""
    return {
        path: _render_entry(report, step, form) for step in report.plan for form, path in list_entry_files(step).items()
    }


def _render_entry(report: Report, step: PlanStep, form: str) -> str:
    assert step.overrides is not None  # it has files
    lines = {name: lines for name, _, lines in list_forms(step.overrides)}.get(form, ())
    head = f"three-walls {report.tool_version}: entry {step.order} of the plan, alone: {step.finding.title}"
    launcher = form.replace("-", "_")
    conditional = _list_conditional(block for block in step.overrides.conditional if block.launcher == launcher)
    parts = [
        _comment_line(head),
        _comment_line(_ENTRY_USES[form].format(path=list_entry_files(step)[form])),
        *_comment("Notes: what no line below can express", step.overrides.notes),
        *map(show_control_characters, lines),
        *(part for title, block in conditional for part in _comment(title, block)),
    ]
    return "\n".join(parts) + "\n"


def _section(title: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    return ("\n".join((_comment_line(title), *lines)),) if lines else ()


def _comment(title: str, notes: tuple[str, ...]) -> tuple[str, ...]:
    """A section of comments: every line of a note that holds line breaks is one."""
    return _section(title, tuple(_comment_line(f"  {line}") for note in notes for line in note.split("\n")))


def _comment_line(text: str) -> str:
    """``text`` as a comment of one line, whatever it holds."""
    return f"# {show_control_characters(text)}".replace("\n", " ")
