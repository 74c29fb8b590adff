"""Spells edits for a launcher: Megatron-Bridge overrides, Megatron-LM flags, environment variables, Python.

Most switches of Megatron-LM only turn on: to turn one off its flag has to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from three_walls.advice.finding import ConditionalLines, Overrides, PlannedEdit
from three_walls.bridge.render_bridge import BridgeSpeller, name_of_sm_count
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.shell import is_variable
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.bridge_releases import bridge_schema, core_of, known_releases, release_number
from three_walls.tables.config_keys import ConfigKey, FlagSpelling, config_keys, flags_of, is_allowed, late_words

NEWEST_BRIDGE = "0.6.2"
_WITHOUT_SECTION = (
    "needs a recipe without a comm_overlap section (cfg.comm_overlap is None); instead of the lines that begin with "
    "comm_overlap."
)
_Release = tuple[int, int]
_LinesByRelease = Mapping[_Release, Sequence[str]]
"""The lines for each release, oldest first."""


RELEASE_UNKNOWN = "Megatron-Bridge: the run's release is not known"
"""Begins a note that takes nothing from the lines."""


def spell(edits: Sequence[PlannedEdit], config: RunConfig, bridge_version: str | None = None) -> Overrides:
    """The edits as lines to paste, in their order; of two edits of one key the later one counts.

    Each form has the lines that the run's release takes, or that every release takes if it is not known; the others are
    conditional. What a launcher cannot express is a note that begins with the launcher's name, never a line. Nothing is
    quoted for a shell: a Megatron-LM line is a flag, then its values, each after one space.
    """
    last: dict[tuple[str, str], PlannedEdit] = {}  # each key stands where it was first edited
    for edit in edits:
        last[edit.kind, edit.key] = edit
    release = bridge_version or config.bridge_version
    writable, notes = _keep_valid([edit for edit in last.values() if edit.kind == "config"], config, release)
    environment, unset = _spell_environment(edit for edit in last.values() if edit.kind == "env")
    spelled = _spell_bridge(writable, environment, config, release)
    flags, of_other_cores, flag_notes = _spell_megatron_lm(writable, config, release)
    return replace(
        spelled,
        megatron_lm=flags,
        env=dict(environment),
        notes=tuple(dict.fromkeys([*notes, *spelled.notes, *flag_notes, *unset])),
        conditional=(*spelled.conditional, *of_other_cores),
    )


def _spell_bridge(
    edits: Sequence[PlannedEdit], environment: Sequence[tuple[str, str]], config: RunConfig, release: str | None
) -> Overrides:
    """The overrides and the Python of ``release``, else what all known releases have in common."""
    spellers = {}
    for name in (release,) if release is not None else known_releases():
        speller = BridgeSpeller(edits, config, name, release_is_known=release is not None)
        speller.spell_all()
        speller.spell_environment(environment)
        spellers[release_number(name)] = speller
    lines = {number: speller.lines for number, speller in spellers.items()}
    instead = {number: speller.without_section for number, speller in spellers.items()}
    python = {number: speller.python.lines for number, speller in spellers.items()}
    conditional = [*_apart("bridge", "release", lines)]
    if common := _common(instead):
        conditional.append(ConditionalLines("bridge", _WITHOUT_SECTION, common))
    conditional += _apart("python", "Megatron-Bridge", python)
    notes = list(spellers.values())[-1].notes
    if release is None and any(lines.values()):
        notes.append(
            f"{RELEASE_UNKNOWN}, so the overrides are those that every release from {known_releases()[0]} to "
            f"{NEWEST_BRIDGE} takes"
        )
    return Overrides(
        bridge_version=release or f"{known_releases()[0]} to {NEWEST_BRIDGE}",
        bridge=_common(lines),
        megatron_lm=(),
        env={},
        notes=tuple(notes),
        python=_common(python),
        conditional=tuple(conditional),
    )


def _spell_megatron_lm(
    edits: Sequence[PlannedEdit], config: RunConfig, bridge_release: str | None
) -> tuple[tuple[str, ...], list[ConditionalLines], list[str]]:
    """The flags of the run's release of Megatron Core; other releases' for edits that it has no flag for; notes."""
    spellers = {}
    for number in sorted({release_number(bridge_schema(name).core) for name in known_releases()}):
        spellers[number] = MegatronLmSpeller(edits, config, number)
        spellers[number].spell_all()
    possible = _possible_cores(list(spellers), config, bridge_release)
    lines: list[str] = []
    others: dict[_Release, list[str]] = {number: [] for number in spellers}
    for edit in edits:
        of_edit = {number: speller.lines.get(edit.key, ()) for number, speller in spellers.items()}
        of_possible = {number: of_edit[number] for number in possible}
        common = _common(of_possible)
        lines += common
        if not common or any(set(words) != set(common) for words in of_possible.values()):
            for number, words in of_edit.items():
                others[number] += [line for line in words if line not in lines]
    of_other_cores = list(_apart("megatron_lm", "Megatron Core", others))
    return tuple(dict.fromkeys(lines)), of_other_cores, spellers[possible[-1]].notes


def _possible_cores(known: Sequence[_Release], config: RunConfig, bridge_release: str | None) -> list[_Release]:
    """Releases of Megatron Core that the run may have: the one it shows, else those with the flags that it uses."""
    version = core_of(config.megatron_core_version, bridge_release)
    if version is not None:
        not_newer = [number for number in known if number <= release_number(version)]
        return [not_newer[-1] if not_newer else known[0]]
    possible = list(known)
    for name, value in config.values.items() if config.dialect == "megatron_lm" else ():
        key = config_keys().keys.get(name)
        if key is not None and key.megatron_lm is not None and value.is_stated_by("command line"):
            possible = [number for number in possible if key.megatron_lm.is_in(number)]
    return possible or list(known)


def _common(lines: _LinesByRelease) -> tuple[str, ...]:
    """Lines of every release, in the order of the newest."""
    newest = list(lines.values())[-1]
    return tuple(line for line in newest if all(line in others for others in lines.values()))


def _apart(launcher: str, product: str, lines: _LinesByRelease) -> Iterator[ConditionalLines]:
    """Lines of some releases, by the releases that take them."""
    releases = list(lines)
    groups: dict[tuple[_Release, ...], list[str]] = {}
    for line in dict.fromkeys(line for found in lines.values() for line in found):
        takers = tuple(number for number in releases if line in lines[number])
        if takers != tuple(releases):
            groups.setdefault(takers, []).append(line)
    for takers, found in groups.items():
        first, last = (".".join(map(str, number)) for number in (takers[0], takers[-1]))
        if takers[-1] == releases[-1]:
            condition = f"needs {product} {first} or later"
        elif takers[0] == releases[0]:
            condition = f"needs {product} {last} or earlier"
        else:
            condition = f"needs {product} {first}" + (f" to {last}" if first != last else "")
        yield ConditionalLines(launcher, condition, tuple(found))


def _keep_valid(
    edits: Iterable[PlannedEdit], config: RunConfig, release: str | None
) -> tuple[list[PlannedEdit], list[str]]:
    """Edits of known keys to values they may have, and notes on the others: launchers do not check values."""
    keys = config_keys().keys
    valid, notes = [], []
    for edit in edits:
        if edit.key not in keys:
            notes.append(f"{edit.key}: no launcher's spelling of it is known; set it to {edit.to} by hand")
        elif not is_allowed(keys[edit.key], edit.to):
            notes.append(f"{edit.key}: {edit.to} is not one of its values; left out")
        else:
            valid.append(_with_writable_key(edit, config, release))
    return valid, notes


def _with_writable_key(edit: PlannedEdit, config: RunConfig, release: str | None) -> PlannedEdit:
    """The edit under the name that the run uses, else the current one of its ``release`` of Megatron-Bridge.

    cuda_graph_scope excludes cuda_graph_modules, its newer name.
    """
    modules = config_keys().keys["cuda_graph_modules"]
    if edit.key != "cuda_graph_scope" or not is_allowed(modules, edit.to):
        return edit
    older, newer = config.values.get(edit.key), config.values.get(modules.name)
    is_used = newer is not None and (newer.is_stated_by("command line") or (newer.is_stated and bool(newer.value)))
    is_current = release is not None and bridge_schema(release).find(f"model.{modules.name}") is not None
    is_older_used = older is not None and older.is_stated_by("command line")
    return replace(edit, key=modules.name) if is_used or (is_current and not is_older_used) else edit


def _spell_environment(edits: Iterable[PlannedEdit]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Variables to set, sorted by name, and notes on those to unset and on those that no line of a shell can set."""
    values: dict[str, str] = {}
    notes = []
    for edit in edits:
        elements = edit.to if isinstance(edit.to, tuple) else (edit.to,)
        text = ",".join(str(int(element)) if isinstance(element, bool) else str(element) for element in elements)
        if not is_variable(edit.key):
            notes.append(f"Environment: {edit.key!r} is no name of a variable; left out")
        elif edit.to is None:
            notes.append(f"Environment: unset {edit.key}")
        elif not text.isprintable():
            notes.append(f"Environment: the value for {edit.key} holds control characters ({text!r}); left out")
        else:
            values[edit.key] = text
    return tuple(sorted(values.items())), notes


_ONE_SM_COUNT = (0, 19)
"""The release from which one flag sets the SMs of every dispatcher backend."""
# Megatron-LM takes at most one of the ways to cut the pipeline into virtual stages.
_EXCLUDES = {"virtual_pipeline_model_parallel_size": "num_layers_per_virtual_pipeline_stage"}


class MegatronLmSpeller:
    """Turns edits into the flags of one release of Megatron Core.

    ``lines`` holds, by the key of the edit, one flag with its values each, separated by spaces. An edit for which the
    release has no flag or value has no line. ``notes`` holds what no flag can express.
    """

    def __init__(self, edits: Sequence[PlannedEdit], config: RunConfig, core: tuple[int, int]) -> None:
        self.edits = edits
        self.config = config
        self.core = core
        self.lines: dict[str, list[str]] = {}
        self.notes: list[str] = []
        self._edited_key = ""

    def spell_all(self) -> None:
        backend = {edit.key: edit.to for edit in self.edits}.get(
            "moe_flex_dispatcher_backend", self.config.get("moe_flex_dispatcher_backend")
        )
        for edit in self.edits:
            self._edited_key = edit.key
            key = config_keys().keys[name_of_sm_count(edit.key, backend, one_name=self.core >= _ONE_SM_COUNT)]
            if self._has_already(key, edit.to):
                continue
            if key.megatron_lm is None:
                self._spell_without_flag(key, edit.to)
            elif key.megatron_lm.is_in(self.core) and not late_words(key.megatron_lm, edit.to, self.core):
                self._spell(key, key.megatron_lm, edit.to)

    def _has_already(self, key: ConfigKey, value: ConfigData) -> bool:
        """Whether the run has the value without a flag for it; a derived one may move with other edits."""
        current = self.config.values.get(key.name)
        if current is None or current.value != value or current.is_stated_by("command line"):
            return False
        return current.is_stated or current.source == "Megatron-LM default"

    def _spell_without_flag(self, key: ConfigKey, value: ConfigData) -> None:
        for flag, settings in config_keys().shorthands.items():
            if key.name in settings and settings[key.name] == value:
                self._write(flag)
                return
        self._note(f"{key.name} has no flag")

    def _spell(self, key: ConfigKey, spelling: FlagSpelling, value: ConfigData) -> None:
        excluded = config_keys().keys.get(_EXCLUDES.get(key.name, ""))
        if excluded is not None and self.config.get(excluded.name) is not None:
            self._note(f"remove {flags_of(excluded)[0]}: it cannot be combined with {flags_of(key)[0]}")
        if key.type == "bool":
            self._spell_switch(key, spelling, value is True)
        elif value is None or value == ():
            self._remove(key, flags_of(key))
        else:
            elements = value if isinstance(value, tuple) else (value,)
            words = [repr(element) if isinstance(element, float) else str(element) for element in elements]
            # A word with spaces, or an empty one, could not be recognised in a line; a text that begins with - is
            # taken for the next flag.
            has_dash = any(isinstance(element, str) and element.startswith("-") for element in elements)
            if has_dash or any(word.split() != [word] for word in words):
                self._note(f"set {spelling.flag} by hand to {', '.join(map(repr, words))}")
            else:
                self._write(" ".join([spelling.flag or "", *words]))

    def _spell_switch(self, key: ConfigKey, spelling: FlagSpelling, on: bool) -> None:
        flag, opposite = (spelling.flag, spelling.negated_flag) if on else (spelling.negated_flag, spelling.flag)
        if flag is not None:
            self._write(flag)
        current = self.config.values.get(key.name)
        is_given = current is not None and current.is_stated_by("command line")
        if opposite is not None and (flag is None or is_given):
            aliases = spelling.aliases if spelling.flag is None or spelling.negated_flag is None else ()
            self._remove(key, (opposite, *aliases))

    def _remove(self, key: ConfigKey, flags: Sequence[str]) -> None:
        shorthands = [flag for flag, settings in config_keys().shorthands.items() if key.name in settings]
        others = [flag for flag in [*flags[1:], *shorthands] if flag not in flags[:1]]
        self._note(f"remove {flags[0]}" + (f" (or {', '.join(others)})" if others else ""))

    def _write(self, line: str) -> None:
        self.lines.setdefault(self._edited_key, []).append(line)

    def _note(self, text: str) -> None:
        self.notes.append(f"Megatron-LM: {text}")
