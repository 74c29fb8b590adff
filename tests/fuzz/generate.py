"""Makes a case from its kind, seed and number; the same three always give the same case."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from random import Random

from tests.fuzz.case import Case, Change, GivenFile
from tests.fuzz.seeds import SECRET, seed_content, seed_names
from tests.fuzz.values import (
    FLAGS,
    MARKUP,
    NAMES,
    SETTINGS,
    WORDS,
    pick_datum,
    pick_number,
    pick_text,
    pick_word,
)

Command = list[tuple[str, ...]]

WEIGHTS = {
    "doctor": 23,
    "scrub": 19,
    "log": 17,
    "snapshot": 11,
    "rules": 8,
    "overrides": 8,
    "analyze": 3,
    "config": 3,
    "report": 2,
    "capture": 2,
    "names": 2,
    "combined": 2,
}
"""Kind -> its share of the cases in percent. Those that end in a report take ten times as long as the others."""


def make_case(kind: str, seed: int, number: int) -> Case:
    """The case ``kind-seed-number``. Raises KeyError for an unknown kind."""
    identifier = f"{kind}-{seed}-{number}"
    random = Random(identifier)
    command, files, planted = _MAKERS[kind](random)
    return Case(identifier, tuple(command), tuple(files), planted)


def kind_of(seed: int, number: int) -> str:
    """The kind of case ``number`` in a mixed run."""
    return Random(f"{seed}-{number}").choices(list(WEIGHTS), list(WEIGHTS.values()))[0]


Made = tuple[Command, list[GivenFile], tuple[str, ...]]


@cache
def _columns_of(seed: str) -> tuple[tuple[str, int, tuple[tuple[str, bool], ...]], ...]:
    """(table, rows, ((column, whether it holds text), ...)) of an export."""
    found = []
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(seed_content(seed))
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
        for (table,) in tables:
            names = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            (rows,) = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()
            first = database.execute(f'SELECT * FROM "{table}" LIMIT 1').fetchone() or (None,) * len(names)
            is_text = tuple((name, isinstance(cell, str | bytes)) for name, cell in zip(names, first, strict=True))
            found.append((table, rows, is_text))
    return tuple(found)


_READ_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "NVTX_EVENTS",
    "StringIds",
    "StringIds",
    "META_DATA_CAPTURE",
    "TARGET_INFO_GPU",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
)
"""Tables that decide most of a report; the more often named ones are attacked more often."""


def _change_rows(random: Random, seed: str) -> Change:
    """One change of an export's rows or tables."""
    tables = _columns_of(seed)
    if random.random() < 0.5:
        wanted = random.choice(_READ_TABLES)
        tables = tuple(row for row in tables if row[0] == wanted) or tables
    table, rows, columns = random.choice(tables)
    column, is_text = random.choice(columns)
    value = pick_text(random) if is_text != (random.random() < 0.15) else pick_number(random)
    first = random.randrange(1, max(rows, 1) + 1)
    last = random.choice((first, first, first + 1, first + random.randrange(max(rows, 1)), rows))
    where = f"WHERE rowid BETWEEN {first} AND {last}"
    update = f'UPDATE OR IGNORE "{table}" SET '
    action = random.random()
    if action < 0.50:
        return ["sql", [f'{update}"{column}" = {value} {where}']]
    if action < 0.56:
        return ["sql", [f'{update}"{column}" = "{column}" + {random.randrange(-(1 << 40), 1 << 40)} {where}']]
    if action < 0.64:
        return ["sql", [_change_text_column(random, table, column) + where]]
    if action < 0.74 and "start" in dict(columns) and "end" in dict(columns):
        return ["sql", [f"{update}{random.choice(_TIMES)} {where}"]]
    if action < 0.80:
        return ["sql", [f'INSERT OR IGNORE INTO "{table}" SELECT * FROM "{table}" {where}'] * random.randrange(1, 4)]
    if action < 0.86:
        return ["sql", [f'DELETE FROM "{table}" {where}']]
    if action < 0.90:
        order = f"(rowid * 7919) % {random.randrange(2, 1009)}"
        shuffled = f'CREATE TABLE moved AS SELECT * FROM "{table}" ORDER BY {order}'
        return ["sql", [shuffled, f'DROP TABLE "{table}"', f'ALTER TABLE moved RENAME TO "{table}"']]
    return ["sql", random.choice(_schema_changes(table, column, value))]


_TIMES = (
    '"end" = start',
    '"end" = start - 1',
    '"end" = NULL',
    'start = "end"',
    "start = 0",
    'start = 0, "end" = 0',
    '"end" = 9223372036854775807',
    'start = -9223372036854775808, "end" = 9223372036854775807',
    'start = start + 1000000, "end" = "end" + 1000000',
    'start = start * 1000000, "end" = "end" * 1000000',
    'start = start / 1000000, "end" = "end" / 1000000',
    'start = (SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL), "end" = (SELECT max("end") FROM '
    "CUPTI_ACTIVITY_KIND_KERNEL)",
    "start = abs(random() % 5000000)",
    '"end" = start + abs(random() % 5000000)',
)
"""Assignments that make times impossible, or only unlikely."""


def _change_text_column(random: Random, table: str, column: str) -> str:
    """An UPDATE without its WHERE that changes a text within itself: repeats, cuts or joins a part of it."""
    first, length = random.randrange(1, 30), random.randrange(1, 25)
    part = f'substr("{column}", {first}, {length})'
    times = random.choice((3, 50, 500, 4_000, 20_000))
    changed = random.choice(
        (
            f"replace(hex(zeroblob({times})), '00', {part})",
            f"\"{column}\" || replace(hex(zeroblob({times})), '00', {part})",
            f'substr("{column}", 1, {first})',
            f'"{column}" || {pick_text(random)}',
            f'{pick_text(random)} || "{column}"',
            f'replace("{column}", substr("{column}", {first}, 1), {pick_text(random)})',
            f'substr("{column}", 1, {first}) || {pick_text(random)} || substr("{column}", {first + 1})',
        )
    )
    return f'UPDATE OR IGNORE "{table}" SET "{column}" = {changed} '


def _schema_changes(table: str, column: str, value: str) -> list[list[str]]:
    return [
        [f'DROP TABLE "{table}"'],
        [f'ALTER TABLE "{table}" DROP COLUMN "{column}"'],
        [f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column.upper()}"'],
        [
            f'ALTER TABLE "{table}" RENAME TO "{table.lower()}_"',
            f'CREATE VIEW "{table}" AS SELECT * FROM "{table.lower()}_"',
        ],
        [f'ALTER TABLE "{table}" ADD COLUMN "odd ""name" DEFAULT {value}'],
        [
            'CREATE TABLE "a""b" (x, "y z", "")',
            'CREATE TABLE "; DROP TABLE StringIds" (x)',
            'CREATE TABLE "\x1b[31m" (x)',
        ],
        [f'DELETE FROM "{table}"'],
        [f'ALTER TABLE "{table}" RENAME TO gone', f'CREATE TABLE "{table}" AS SELECT *, *, 1 AS start FROM gone'],
        [
            "PRAGMA writable_schema = ON",
            f"UPDATE sqlite_master SET sql = replace(sql, '{column}', 'x') WHERE name = '{table}'",
        ],
        ["PRAGMA writable_schema = ON", f"UPDATE sqlite_master SET name = CAST(x'ff' AS TEXT) WHERE name = '{table}'"],
        ["PRAGMA writable_schema = ON", f"UPDATE sqlite_master SET rootpage = rootpage + 1 WHERE name = '{table}'"],
        [
            f'CREATE TABLE deep AS SELECT * FROM "{table}"',
            f'CREATE TABLE "{table}_" (x INTEGER PRIMARY KEY) WITHOUT ROWID',
        ],
        ["PRAGMA encoding = 'UTF-16'", "PRAGMA user_version = -1", "PRAGMA page_size = 512", "VACUUM"],
        ["CREATE VIRTUAL TABLE searched USING fts5(x)", "INSERT INTO searched VALUES ('a')"],
    ]


def _change_bytes(random: Random) -> Change:
    at = random.choice((random.randrange(100), random.randrange(1 << 24)))
    return random.choice(
        (
            ["flip", at, random.randrange(8)],
            ["flip", at, random.randrange(8)],
            ["flip-letter", random.randrange(1 << 16), random.randrange(8)],
            ["flip-letter", random.randrange(1 << 16), 7],  # no UTF-8 any more
            [
                "write",
                at,
                random.choice(("00", "ff", "ffff", "7fffffff", random.randbytes(random.randrange(1, 9)).hex())),
            ],
            ["write", at, random.randbytes(64).hex()],
            ["insert", at, random.randbytes(random.randrange(1, 9)).hex(), random.choice((1, 1, 100, 5_000))],
            ["remove", at, random.choice((1, 7, 512, 4096))],
            ["cut", at],
            ["swap", random.randrange(64), random.randrange(64), 4096],
        )
    )


def _export_file(random: Random, name: str, seeds: list[str], byte_share: float = 0.35) -> GivenFile:
    """An export with up to seven changes; some are packed, and some of those damaged again."""
    seed = random.choice(seeds)
    damages_bytes = random.random() < byte_share
    most = random.choice((2, 5, 5, 12))
    changes = [_change_rows(random, seed) for _ in range(random.randrange(0 if damages_bytes else 1, most))]
    if damages_bytes:
        changes += [_change_bytes(random) for _ in range(random.choice((1, 1, 2, 5)))]
    suffix = random.choice(("", "", "", "", "", "", ".xz", ".zst"))
    if suffix:
        changes.append(["pack", suffix[1:]])
        if random.random() < 0.5:
            changes += [_change_bytes(random) for _ in range(random.choice((1, 2)))]
    if suffix and random.random() < 0.02:
        changes[-1:] = [["insert", -1, "00", 1 << 25], changes[-1], ["frames", 20]]  # 640 MiB, in a few kB
        changes = [["zeros", 4_000]] if suffix == ".zst" and random.random() < 0.5 else changes
    if random.random() < 0.02:
        changes.append(["node", random.choice(_NODES)])
    return GivenFile(name + suffix, seed, tuple(changes))


_NODES = ("fifo", "directory", "missing", "zero", "loop", "locked")


def _files_nearby(random: Random, export: GivenFile) -> list[GivenFile]:
    """The export, and sometimes what may lie next to it and in the directory for the report."""
    files = [export]
    if random.random() < 0.04:
        files.append(
            GivenFile(f"{export.name}-{random.choice(('wal', 'journal', 'shm'))}", random.choice(seed_names("log")))
        )
    if random.random() < 0.1:
        files.append(GivenFile("out/notes.txt", "log/progress"))
    elif random.random() < 0.02:
        files.append(GivenFile("out", "log/progress", (["node", random.choice(_NODES)],)))
    return files


def _change_text(random: Random) -> Change:
    at = random.randrange(1 << 16)
    action = random.random()
    if action < 0.5:
        return ["word", at, pick_word(random)]
    if action < 0.65:
        return ["line", at, pick_word(random)]
    if action < 0.75:
        return ["cut-lines", at, random.randrange(1, 40)]
    if action < 0.82:
        return ["repeat-lines", at, random.randrange(1, 6), random.choice((1, 2, 20, 300))]
    if action < 0.92:
        return ["stutter", at, random.randrange(1, 30), random.choice((3, 30, 500, 3_000, 20_000))]
    return _change_bytes(random)


def _text_file(random: Random, name: str, seed: str, most: int = 5) -> GivenFile:
    changes = [_change_text(random) for _ in range(random.randrange(1, most + 1))]
    return GivenFile(name, seed, tuple(changes))


def _data_file(random: Random, name: str, seed: str, form: str) -> GivenFile:
    """Data with up to three changes of its structure, then perhaps some of its bytes."""
    changes: list[Change] = []
    for _ in range(random.randrange(4)):
        path = [random.randrange(1 << 16) for _ in range(random.randrange(1, 7))]
        choices: list[Change] = [["put", path, pick_datum(random)], ["put", path, pick_datum(random)], ["drop", path]]
        choices.append(["repeat", path, random.choice((2, 30, 2_000) if form != "pickle" else (2, 2_000, 30_000))])
        if form != "json":
            choices.append(["share", [random.randrange(1 << 16) for _ in range(random.randrange(1, 5))], path])
        changes.append(random.choice(choices))
    changes.append(["form", form, random.randrange(6)])
    if form == "pickle":
        changes += [_change_bytes(random) for _ in range(random.choice((0, 1, 1, 3)))]
        if random.random() < 0.1:
            changes.append(["insert", 0, random.choice(_PICKLES).hex(), 1])
    elif len(changes) == 1 or random.random() < 0.4:
        changes += [_change_text(random) for _ in range(random.randrange(1, 4))]
    return GivenFile(name, seed, tuple(changes))


_PICKLES = (
    b"cos\nsystem\n(S'touch PWNED'\ntR.",
    b"\x80\x04" + b"]" * 3_000 + b"a" * 2_999 + b".",
    b"\x80\x04]\x94" + b"(h\x00h\x00h\x00h\x00l\x94" * 20 + b".",
    b"\x80\x02]r\xff\xff\xff\x7f.",
    b"\x80\x04\x8b\xff\xff\xff\x7f.",
    b"I" + b"9" * 5_000 + b"\n.",
    b"F" + b"9" * 5_000 + b"\n.",
)
"""Hostile beginnings of a pickle."""


def _make_doctor(random: Random) -> Made:
    file = _export_file(random, "rank0.sqlite", [*seed_names("export"), "export/rich", "idle/kernelless"])
    return [("doctor",), (file.name,), *random.choice(([], [("--json",)]))], _files_nearby(random, file), ()


def _make_analyze(random: Random) -> Made:
    file = _export_file(random, "rank0.sqlite", [*seed_names("export"), "export/rich", "export/rich"], 0.25)
    command: Command = [("analyze",), (file.name,), ("--out", "out")]
    if random.random() < 0.2:
        command.append(
            ("--step-range", random.choice(("step", "training_step_", ".", "a|b", "(?P<n>x)", "^$", "(.+)+$")))
        )
    if random.random() < 0.3:
        command.append(("--full",))
    if random.random() < 0.1:
        command.append(
            ("--bridge-version", random.choice(("main", "0.3.1", "0.5.0", "99.0.0", "0.6.2.1", "9" * 400 + ".1")))
        )
    if random.random() < 0.2:
        command.append(("--allow", random.choice(("convergence-changing", "benchmark-only", "execution-only"))))
    return command, _files_nearby(random, file), (SECRET,)


def _make_log(random: Random) -> Made:
    """Mostly with an export without kernels: the log is read first, and the analysis ends at the export."""
    seed = random.choice(seed_names("log"))
    suffix = random.choice(("", "", "", "", ".gz", ".xz", ".zst"))
    name = "progress.txt" if seed == "log/progress" and not suffix else "train.log"
    log = _text_file(random, name + suffix, seed)
    changes = [*log.changes, *([["pack", suffix[1:]]] if suffix else [])]
    if suffix and random.random() < 0.4:
        changes.append(_change_bytes(random))
    export = "export/rich" if random.random() < 0.04 else "idle/empty"
    files = [GivenFile("rank0.sqlite", export), GivenFile(log.name, seed, tuple(changes))]
    return [("analyze",), ("rank0.sqlite",), ("--out", "out"), ("--log", log.name)], files, (SECRET,)


def _make_snapshot(random: Random) -> Made:
    form = random.choice(("pickle", "pickle", "json"))
    snapshot = _data_file(random, f"memory.{form}", "snapshot", form)
    export = "export/plain" if random.random() < 0.04 else "idle/empty"
    command: Command = [("analyze",), ("rank0.sqlite",), ("--out", "out"), ("--memory-snapshot", snapshot.name)]
    return command, [GivenFile("rank0.sqlite", export), snapshot], ()


def _make_config(random: Random) -> Made:
    """Settings of all sources at once: the run's file, ``--set`` and the command line in the trace."""
    files = []
    command: Command = [("analyze",), ("rank0.sqlite",), ("--out", "out")]
    if random.random() < 0.7:
        files.append(_data_file(random, "run_config.yaml", "config", "yaml"))
        command.append(("--config", "run_config.yaml"))
    for _ in range(random.choice((0, 0, 1, 3))):
        command.append(("--set", f"{random.choice(SETTINGS)}={_argument(random)}"))
    arguments = [
        f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_{order}', {_quote_sql(word)})"
        for order, word in enumerate(_command_words(random), start=random.choice((50, 50, 50, 10**4_000)))
    ]
    files.append(GivenFile("rank0.sqlite", "export/rich", (["sql", arguments],)))
    return command, files, (SECRET,)


def _command_words(random: Random) -> list[str]:
    words = []
    for _ in range(random.randrange(0, 8)):
        words.append(random.choice((*FLAGS, f"{random.choice(SETTINGS)}={_argument(random)}")))
        if random.random() < 0.7:
            words.append(_argument(random))
    return words


def _argument(random: Random) -> str:
    """A word that a command line may hold: no NUL."""
    if random.random() < 0.5:
        return str(random.choice((0, 1, 2, 3, 4, 8, 64, 4096, 10**18)))
    word = random.choice(
        (*WORDS, "9" * 5_000, "[" * 2_000, "full", "selective", "Et*2|t*6|L", "([0]*3+[1]*2)*2", "1e5", "a,b")
    )
    return word.replace("\x00", "")


def _quote_sql(word: str) -> str:
    return f"CAST(x'{word.encode('utf-8', 'surrogateescape').hex()}' AS TEXT)"


_RULES = {
    "rules/rule": ("own/communication/late-rank-2.yaml", "late-rank-2"),
    "rules/cases": ("own/communication/late-rank-2.cases.yaml", "late-rank-2"),
    "rules/warning": ("own/warnings/late.yaml", "another-code"),
    "rules/sources": ("own/sources.yaml", ""),
}
"""Seed -> where its file is, and its new name: that of the bundled rule is taken."""

_RULE_COMMANDS = (
    *[("rules", "check")] * 4,
    *[("rules", "list")] * 2,
    *[("rules", "warnings")] * 2,
    ("rules", "show", "late-rank-2"),
    ("rules", "test"),  # of the bundled rules too
)


def _make_rules(random: Random) -> Made:
    """A directory with one rule, its cases, a warning and sources, of which one or two are changed."""
    attacked = random.sample(sorted(_RULES), random.choice((1, 1, 2)))
    files = []
    for seed, (path, name) in _RULES.items():
        changes: list[Change] = [["word", 1, name]] if name else []
        if seed in attacked:
            changes += [_change_text(random) for _ in range(random.randrange(1, 4))]
        if seed in attacked and random.random() < 0.08:
            opening = random.choice((b"[", b"{a: ", b"- ", b"&a [*a, ", b"? "))
            changes.append(["insert", random.randrange(99), opening.hex(), random.choice((50, 900, 3_000, 200_000))])
        if seed in attacked and random.random() < 0.02:
            changes.append(["node", random.choice(_NODES)])
        files.append(GivenFile(path, seed, tuple(changes)))
    if random.random() < 0.05:  # their texts reach the report
        files.append(GivenFile("rank0.sqlite", "export/rich"))
        return [("analyze",), ("rank0.sqlite",), ("--out", "out"), ("--rules", "own")], files, (SECRET,)
    return [random.choice(_RULE_COMMANDS), ("own",)], files, ()


def _make_overrides(random: Random) -> Made:
    overrides = _text_file(random, "overrides.txt", "overrides/plan")
    files = [overrides]
    target = ("--recipe", "vanilla_gpt_pretrain_config")
    if random.random() < 0.4:
        target = ("--config", "run_config.yaml")
        files.append(_data_file(random, "run_config.yaml", "config", "yaml"))
    command: Command = [("verify",), ("overrides.txt", "--python", "/nonexistent/python"), target]
    if target[0] == "--config":  # one of the two is required
        command = [("verify",), ("overrides.txt", "--python", "/nonexistent/python", *target)]
    if random.random() < 0.3:
        command.append(("--world-size", random.choice(("0", "-1", "8", "9" * 30))))
    if random.random() < 0.2:
        command.append(("--gpu", random.choice(WORDS).replace("\x00", "") or "x"))
    return command, files, ()


def _make_report(random: Random) -> Made:
    return [("load-report",), ("report.json",)], [_data_file(random, "report.json", "report", "json")], ()


def _make_capture(random: Random) -> Made:
    words = [random.choice(("torchrun", "srun", "python", "bash", "mpirun", "env", _argument(random)))]
    words += [random.choice(("-c", "--nproc-per-node", "8", "pretrain_gpt.py", "run_recipe.py", "-m"))]
    words += _command_words(random)
    command: Command = [("capture",)]
    if random.random() < 0.3:
        command.append(("--framework", random.choice(("bridge", "megatron-lm"))))
    if random.random() < 0.3:
        command.append(("--steps", random.choice(("1-2", "5-1", "0-0", "9" * 30 + "-" + "9" * 31, "a-b", "-"))))
    if random.random() < 0.3:
        command.append(("--ranks", random.choice(("0-7", "0-99999999999", "3,3,3", "7-0", "x", "," * 9, "0-999999"))))
    return [*command, ("--", *words)], [], ()


def _make_names(random: Random) -> Made:
    """Hostile names of files, and hostile texts in a sound trace."""
    stem = random.choice(NAMES)
    name = f"{stem}.sqlite"
    texts = [
        f"UPDATE StringIds SET value = value || {pick_text(random)} WHERE rowid = {random.randrange(1, 30)}"
        for _ in range(4)
    ]
    texts.append(f"UPDATE TARGET_INFO_GPU SET name = {pick_text(random)}")
    texts.append(f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = {pick_text(random)}")
    file = GivenFile(name, random.choice(("export/rich", "idle/kernelless")), (["sql", texts],))
    command = random.choice(
        (
            [("analyze",), (name,), ("--full",)],
            [("doctor",), (name,)],
            [("scrub",), (name, f"{random.choice(NAMES)}2.sqlite")],
        )
    )
    return command, [file], (SECRET,)


def _make_combined(random: Random) -> Made:
    """Two ranks, a log, a snapshot and settings, all of them changed a little."""
    ranks = [_export_file(random, f"profiles/rank{rank}.sqlite", [f"rank/{rank}"], 0.15) for rank in range(2)]
    log = _text_file(random, "train.log", random.choice(seed_names("log")), most=2)
    config = _data_file(random, "run_config.yaml", "config", "yaml")
    snapshot = _data_file(random, "memory.pickle", "snapshot", "pickle")
    command: Command = [("analyze",), ("profiles",), ("--out", "out")]
    files = [*ranks]
    for group, file in (
        (("--log", log.name), log),
        (("--config", config.name), config),
        (("--memory-snapshot", snapshot.name), snapshot),
    ):
        if random.random() < 0.5:
            command.append(group)
            files.append(file)
    return command, files, (SECRET,)


def _make_scrub(random: Random) -> Made:
    """An export with planted tokens, and perhaps a few other changes."""
    seed = random.choice((*seed_names("export"), "export/real", "export/rich", "idle/kernelless"))
    tokens = [_token(random) for _ in range(3)]
    changes = [["sql", _plant(random, seed, token)] for token in tokens]
    changes += [_change_rows(random, seed) for _ in range(random.choice((0, 0, 1, 2)))]
    if random.random() < 0.1:
        changes.append(_change_bytes(random))
    suffix = random.choice(("", "", "", ".xz", ".zst"))
    if suffix:
        changes.append(["pack", suffix[1:]])
    file = GivenFile(f"rank0.sqlite{suffix}", seed, tuple(changes))
    target = random.choice(("out.sqlite", "out.sqlite", "out.sqlite.xz", "out.sqlite.zst"))
    return [("scrub",), (file.name, target)], [file], (SECRET, *(core for _, core in tokens))


_PAIRS = ("META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV")
_LETTERS = "bcdfghjklmnpqrstvwxz"


def _token(random: Random) -> tuple[str, str]:
    """A private text, and the part of it that must not survive."""
    word = "".join(random.choices(_LETTERS, k=12))
    key = "".join(random.choices(_LETTERS + _LETTERS.upper() + "0123456789", k=24)) + "7a9B"
    shape = random.choice(
        ("key", "host", "mail", "path", "relative", "unc", "number", "address", "url", "hex", "foreign")
    )
    match shape:
        case "key":
            return key, key
        case "host":
            return f"{word}.corp.example.com", word
        case "mail":
            return f"{word}@example.com", word
        case "path":
            return f"/home/{word}/run", word
        case "relative":
            return f"{word}/model/layers.py", word
        case "unc":
            return rf"\\{word}\share\run", word
        case "number":
            number = str(random.randrange(10**17, 10**18))
            return number, number
        case "address":
            address = ".".join(str(random.randrange(100, 256)) for _ in range(4))
            return address, address
        case "url":
            return f"https://{word}.example.com/x?token={key}", word
        case "hex":
            digits = random.randbytes(16).hex()
            return digits, digits
        case _:
            foreign = "".join(random.choices("äöüßéèñжшщюяд", k=9))
            return foreign, foreign


def _plant(random: Random, seed: str, token: tuple[str, str]) -> list[str]:
    """Statements that put a token into one place of an export."""
    text = _quote_sql(token[0])
    texts = [
        (table, rows, column)
        for table, rows, columns in _columns_of(seed)
        for column, is_text in columns
        # A number may be the value of a setting, and four of them a version: these stay.
        if is_text and rows and not (table in _PAIRS and token[0].replace(".", "").isdecimal())
    ]
    table, rows, column = random.choice(texts)
    row = f"rowid = {random.randrange(1, rows + 1)}"
    strings = f"id = (SELECT id FROM StringIds ORDER BY (id * 7919) % {random.randrange(2, 1009)} LIMIT 1)"
    key = f"CAST('MY_VARIABLE=' || {text} AS TEXT)"
    return random.choice(
        [
            [f'UPDATE OR IGNORE "{table}" SET "{column}" = {text} WHERE {row}'],
            [f'UPDATE OR IGNORE "{table}" SET "{column}" = "{column}" || \' \' || {text} WHERE {row}'],
            [f"UPDATE OR IGNORE StringIds SET value = {text} WHERE {strings}"],
            [f"UPDATE OR IGNORE StringIds SET value = value || '_' || {text} WHERE {strings}"],
            [f"UPDATE OR IGNORE StringIds SET value = 'void at::' || {text} || '<float>(int)' WHERE {strings}"],
            [f"UPDATE OR IGNORE StringIds SET value = 'aten::' || {text} WHERE {strings}"],
            [f"UPDATE OR IGNORE StringIds SET value = 'FSDP::forward (' || {text} || ')' WHERE {strings}"],
            [f"UPDATE OR IGNORE NVTX_EVENTS SET text = 'nccl:' || {text} WHERE rowid % 3 = 1"],
            [f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', {key})"],
            [f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_70', {text})"],
            [f"INSERT INTO META_DATA_CAPTURE VALUES ({text}, 'x')"],
            [f"INSERT INTO StringIds VALUES (987654, 'HOME=/root' || char(0) || {key})"],
            [f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = {text} WHERE name = 'Hostname'"],
            [f"UPDATE TARGET_INFO_GPU SET name = 'NVIDIA H200 ' || {text}"],
            [f"CREATE TABLE planted AS SELECT {text} AS x"],
            [f"CREATE TABLE freed AS SELECT {text} AS x", "DELETE FROM freed"],
            ["ALTER TABLE StringIds ADD COLUMN extra", f"UPDATE StringIds SET extra = {text} WHERE {strings}"],
            [f"UPDATE OR IGNORE NVTX_EVENTS SET binaryData = CAST({text} AS BLOB) WHERE {row}"],
        ]
    )  # fmt: skip


_MAKERS: dict[str, Callable[[Random], Made]] = {
    "doctor": _make_doctor,
    "scrub": _make_scrub,
    "log": _make_log,
    "snapshot": _make_snapshot,
    "rules": _make_rules,
    "overrides": _make_overrides,
    "report": _make_report,
    "capture": _make_capture,
    "analyze": _make_analyze,
    "config": _make_config,
    "names": _make_names,
    "combined": _make_combined,
}
__all__ = ["MARKUP", "WEIGHTS", "kind_of", "make_case"]
