"""Plants a marker of its own in every place of an export where a text can stand."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import string
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from three_walls.tables.config_keys import config_keys, flags_of, paths_of
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.shareable import scrub_rules

STEM = "Zwergelstern"
"""No word of any language, and no key's shape: nothing but the forms of the places can tell that it is a secret."""

ID_KINDS = ("kernel_ids", "call_ids", "label_ids", "range_ids")
FAMILIES = ("NCCL", "TORCH_NCCL", "NVTE", "NVSHMEM", "DEEP_EP", "HYBRID_EP", "CUDNN", "CUBLAS", "CUBLASLT")


def _endings() -> Iterator[str]:
    return ("".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))


@dataclass
class Planted:
    """``places``: what each marker stands for."""

    path: Path
    places: dict[str, str] = field(default_factory=dict)
    endings: Iterator[str] = field(default_factory=_endings)

    def marker(self, place: str) -> str:
        text = f"{STEM}{next(self.endings)}"
        self.places[text] = place
        return text

    def found_in(self, data: bytes) -> list[str]:
        """Places whose marker is in ``data``, in UTF-8 or UTF-16, whatever the case."""
        lowered = data.lower()
        return sorted(
            place
            for marker, place in self.places.items()
            if any(marker.lower().encode(code) in lowered for code in ("utf-8", "utf-16-le", "utf-16-be"))
        )


def plant_everywhere(source: Path, target: Path, launcher: str, in_numbers: bool = True) -> Planted:
    """A copy of the export ``source`` with a marker in every cell, name and leftover.

    ``launcher``: megatron_lm or bridge. Without ``in_numbers`` columns of numbers hold
    numbers, and variables have no names of their own.
    """
    shutil.copyfile(source, target)
    planted = Planted(target)
    with closing(sqlite3.connect(target)) as database:
        database.execute("PRAGMA secure_delete = OFF")
        _loosen(database)
        _create_tables_of_the_rules(database)
        for table in _tables(database) if in_numbers else ():
            _plant_cells(database, table, planted)
        _plant_strings(database, planted)
        _plant_launch(database, planted, launcher, in_names=in_numbers)
        _plant_what_is_not_listed(database, planted)
        database.commit()
    _plant_leftovers(target, planted)
    return planted


def _tables(database: sqlite3.Connection) -> list[str]:
    return [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def _loosen(database: sqlite3.Connection) -> None:
    """Keys and constraints away, so that any value can stand in any column."""
    for table in _tables(database):
        database.execute(f'CREATE TABLE loose AS SELECT * FROM "{table}"')
        database.execute(f'DROP TABLE "{table}"')
        database.execute(f'ALTER TABLE loose RENAME TO "{table}"')


def _create_tables_of_the_rules(database: sqlite3.Connection) -> None:
    """Tables that this export does not have; columns that it lacks."""
    there = _tables(database)
    for table, columns in scrub_rules().column_kinds.items():
        if table not in there:
            database.execute(f'CREATE TABLE "{table}" ({", ".join(f"{name!r}" for name in columns)})')
        have = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
        for name in columns.keys() - have:
            database.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}"')
    for table in scrub_rules().pairs:
        if table not in there:
            database.execute(f'CREATE TABLE "{table}" (name TEXT, value TEXT)')


def _plant_cells(database: sqlite3.Connection, table: str, planted: Planted) -> None:
    """Per column two rows, with a text and with bytes in it; the other cells as in some row of the table."""
    names = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    row = database.execute(f'SELECT * FROM "{table}" LIMIT 1').fetchone() or (1,) * len(names)
    for index, name in enumerate(names):
        text = planted.marker(f"{table}.{name}")
        blob = planted.marker(f"{table}.{name} (bytes)").encode()
        for value in (text, b"\0\0" + blob):
            cells = [*row[:index], value, *row[index + 1 :]]
            database.execute(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(cells))})', cells)


def _plant_strings(database: sqlite3.Connection, planted: Planted) -> None:
    """A string that nothing refers to, the environment of a process, one for every column that holds ids of strings."""
    numbers = itertools.count(5_000_000)

    def string_id(place: str, before: str = "", after: str = "") -> int:
        number = next(numbers)
        text = f"{before}{planted.marker(place)}{after}"
        database.execute("INSERT INTO StringIds (id, value) VALUES (?, ?)", (number, text))
        return number

    string_id("StringIds, unused")
    string_id("StringIds, an environment", "HOME=/root\0LANG=", "\0PWD=/")
    string_id("StringIds, an environment's name", "A=b\0", "=c\0PWD=/")
    for table in _tables(database):
        names = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        kinds = scrub_rules().column_kinds.get(table, {})
        row = database.execute(f'SELECT * FROM "{table}" LIMIT 1').fetchone() or (1,) * len(names)
        for index, name in enumerate(names):
            if kinds.get(name) in ID_KINDS or name.lower().endswith("nameid"):
                cells = [*row[:index], string_id(f"{table}.{name} -> StringIds"), *row[index + 1 :]]
                if table == "NVTX_EVENTS":
                    cells[names.index("text")] = None
                database.execute(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(cells))})', cells)


def _plant_launch(database: sqlite3.Connection, planted: Planted, launcher: str, in_names: bool) -> None:
    """Every variable that may be shown, every setting that is known, and the launcher's own words."""
    names = [*allowed_variables().names, *(f"{family}_OTHER_SETTING" for family in FAMILIES)]
    names += ["HF_TOKEN", "HOME", "USER", "HOSTNAME"]
    rows = [("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{planted.marker(name)}"') for name in names]
    words = [f"/home/{planted.marker('interpreter')}/python", "-m", "torch.distributed.run"]
    words += ["--rdzv-id", planted.marker("--rdzv-id")]
    words += _megatron_words(planted) if launcher == "megatron_lm" else _bridge_words(planted)
    database.execute("DELETE FROM META_DATA_CAPTURE WHERE name LIKE '%ARGUMENT%' OR name LIKE '%COMMAND'")
    rows.append(("PROCESS_0:COMMAND", words[0]))
    rows += [(f"PROCESS_0:ARGUMENT_{order}", word) for order, word in enumerate(words[1:])]
    for family in FAMILIES if in_names else ():
        name = f"{family}_{planted.marker(f'{family}, a name').upper()}"
        rows.append(("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="1"'))
    named = [("META_DATA_CAPTURE", *row) for row in rows]
    for table in scrub_rules().pairs:
        for (name,) in database.execute(f'SELECT DISTINCT name FROM "{table}"').fetchall():
            name = str(name)
            if "ENVIRONMENT" not in name and "ARGUMENT" not in name and "COMMAND" not in name:
                named.append((table, name, planted.marker(f"{table}: {name}")))
    columns = {
        table: [row[1] for row in database.execute(f"PRAGMA table_info({table})")] for table in scrub_rules().pairs
    }
    for table, name, value in named:
        given = {"name": name, "value": value}
        cells = [given.get(column) for column in columns[table]]
        database.execute(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(cells))})', cells)


def _megatron_words(planted: Planted) -> list[str]:
    words = [
        f"/data/{planted.marker('script')}/{planted.marker('script name')}.py",
        "--num-layers",
        "4",
        "--hidden-size",
    ]
    words += ["64", "--num-attention-heads", "8"]
    for key in config_keys().keys.values():
        for flag in flags_of(key):
            words += [flag] if key.type == "bool" else [flag, planted.marker(flag)]
            words.append(f"{flag}={planted.marker(f'{flag}=')}")
    words += ["--load", f"/home/{planted.marker('--load')}", "--wandb-exp-name", planted.marker("--wandb-exp-name")]
    words += ["--tokenizer-model", planted.marker("--tokenizer-model"), f"--{planted.marker('an option')}", "1"]
    return [*words, "--tensor-model-parallel-size", "1", "--pipeline-model-parallel-size", "1"]


def _bridge_words(planted: Planted) -> list[str]:
    words = ["scripts/run_recipe.py", "--recipe", planted.marker("--recipe"), f"--recipe={planted.marker('--recipe=')}"]
    for option in config_keys().bridge_scripts.options:
        words += [option, planted.marker(option), f"{option}={planted.marker(f'{option}=')}"]
    for key in config_keys().keys.values():
        for path in paths_of(key):
            words += [f"{path}={planted.marker(path)}", f"++{path}=[{planted.marker(f'{path} (list)')},1]"]
    words += [f"model={{num_layers:{planted.marker('in a dict')},{planted.marker('key in a dict')}:1}}"]
    words += [f"model.{planted.marker('a path')}=1", f"env_vars.HF_TOKEN={planted.marker('env_vars.HF_TOKEN')}"]
    words += [f"env_vars.NCCL_DEBUG={planted.marker('env_vars.NCCL_DEBUG')}", f"{planted.marker('a section')}.x=1"]
    words += [f"logger.wandb_project={planted.marker('wandb_project')}", f"comm_overlap.{planted.marker('a field')}=1"]
    return [*words, "model.num_layers=4", "train.micro_batch_size=1"]


def _plant_what_is_not_listed(database: sqlite3.Connection, planted: Planted) -> None:
    """Tables, columns, views, indices and triggers, by content and by name; rows that were deleted."""
    database.execute(f'CREATE TABLE "{planted.marker("a table")}" (note)')
    database.execute("CREATE TABLE NEW_IN_2030 (note)")
    database.execute("INSERT INTO NEW_IN_2030 VALUES (?)", (planted.marker("an unknown table"),))
    database.execute(f'ALTER TABLE NVTX_EVENTS ADD COLUMN "{planted.marker("a column")}"')
    database.execute(f"CREATE VIEW \"{planted.marker('a view')}\" AS SELECT '{planted.marker('inside a view')}' AS x")
    database.execute(f'CREATE INDEX "{planted.marker("an index")}" ON NEW_IN_2030 (note)')
    database.execute(
        f'CREATE TRIGGER "{planted.marker("a trigger")}" AFTER INSERT ON NEW_IN_2030 '
        f"BEGIN SELECT '{planted.marker('inside a trigger')}'; END"
    )
    text = planted.marker("a deleted row") + " "
    database.execute("CREATE TABLE gone (note)")
    database.executemany("INSERT INTO gone VALUES (?)", [(text * 20,)] * 200)
    database.commit()
    database.execute("DROP TABLE gone")


def _plant_leftovers(target: Path, planted: Planted) -> None:
    """What SQLite or a copy may leave behind in the database and next to it."""
    with target.open("ab") as stream:
        stream.write(planted.marker("trailing bytes").encode() * 10)
    # Pending changes (-wal, -journal) are refused where an export is opened.
    target.with_name(f"{target.name}-shm").write_bytes(planted.marker("the file -shm").encode() * 100)
