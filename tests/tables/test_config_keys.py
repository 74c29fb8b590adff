"""The table of config keys: complete, unambiguous, well-typed."""

from pathlib import Path

import pytest

from tests.try_each import try_each
from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.tables.config_keys import (
    ConfigKey,
    ConfigKeyTable,
    config_keys,
    flags_of,
    is_allowed,
    keys_by_flag,
    keys_by_path,
    paths_of,
)
from three_walls.tables.config_values import is_of_type, read_words

KEYS = list(config_keys().keys.values())
FRAME = "shorthands: {}\ndefaults_unknown_with: []\nbridge_scripts: {recipe: [], options: {}}\ndtypes: {}\n"


@try_each(KEYS, lambda key: key.name)
def test_every_key_has_a_spelling_and_a_default_of_its_type(key: ConfigKey) -> None:
    assert flags_of(key) or paths_of(key) or (key.bridge is not None and key.bridge.in_force)
    assert all(is_of_type(key.type.removesuffix("_list").replace("list", "str"), value) for value in key.values)
    if key.megatron_lm is not None and key.megatron_lm.has_default:
        assert is_allowed(key, key.megatron_lm.default)


@try_each(KEYS, lambda key: key.name)
def test_flags_and_paths_have_the_form_of_their_launcher(key: ConfigKey) -> None:
    assert all(flag.startswith("--") and "_" not in flag for flag in flags_of(key))
    whole = {"comm_overlap", "mixed_precision"}
    assert all("." in path or path in whole for path in paths_of(key))


def test_only_switches_have_a_negated_flag() -> None:
    assert all(key.type == "bool" for key in KEYS if key.megatron_lm is not None and key.megatron_lm.negated_flag)


def test_no_flag_and_no_path_belongs_to_two_keys() -> None:
    assert len(keys_by_flag()) == sum(len(flags_of(key)) for key in KEYS)
    assert len(keys_by_path()) == sum(len(paths_of(key)) for key in KEYS)


def test_defaults_that_releases_disagree_on_are_not_claimed() -> None:
    spelling = config_keys().keys["data_parallel_sharding_strategy"].megatron_lm
    assert spelling is not None and not spelling.has_default


@pytest.mark.parametrize(
    ("type_name", "words", "value"),
    [
        ("int", ["8"], 8),
        ("float", ["1e-3"], 0.001),
        ("float", ["0"], 0.0),
        ("bool", ["True"], True),
        ("str", ["8"], "8"),
        ("any", ["2"], 2),
        ("any", ["([0]*1+[1]*3)"], "([0]*1+[1]*3)"),
        ("list", ["moe_act"], ("moe_act",)),
        ("int_list", ["0", "1"], (0, 1)),
        ("str_or_list", ["p2p"], "p2p"),
        ("str_or_list", ["p2p", "a2a"], ("p2p", "a2a")),
        ("float_or_list", ["0.1", "0"], (0.1, 0.0)),
    ],
)
def test_words_become_values_of_the_type(type_name: str, words: list[str], value: object) -> None:
    found = read_words(type_name, words)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("type_name", "word"), [("int", "1.5"), ("int", "x"), ("float", "nan"), ("bool", "maybe")])
def test_words_of_another_type_are_refused(type_name: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        read_words(type_name, [word])


def errors_of(folder: Path, keys: str) -> str:
    path = folder / "keys.yaml"
    path.write_text(FRAME + keys, encoding="utf-8")
    with pytest.raises(RuleBaseError) as error:
        load_table(path, ConfigKeyTable)
    return str(error.value)


def test_every_error_of_a_table_is_reported_at_once(tmp_path: Path) -> None:
    text = errors_of(
        tmp_path,
        "keys:\n"
        "  a: {type: integer, bridge: {path: model.a}}\n"
        "  b: {type: int, wall: moon, megatron_lm: {flag: --b}}\n"
        "  c: {type: int, megatron_lm: {flag: --c, default: x}, bridge: {path: model.c, core_default: y}}\n"
        "  d: {type: int, colour: red, bridge: {path: model.d}}\n"
        "  e: {type: int}\n"
        "  f: {type: str, bridge: {path: model.f}}\n"
        "  g: {type: bool, megatron_lm: {flag: --g, negated_flag: --no-g, aliases: --gg}, bridge: {}}\n",
    )
    for expected in (
        "keys.yaml:6:13: expected one of bool, int, float,",
        "keys.yaml:7:24: expected one of memory, communication, compute_host, found moon",
        "keys.yaml:8:52: the default is not of type int",
        "keys.yaml:8:94: the core_default is not of type int",
        "keys.yaml:9:18: unknown key colour",
        "keys.yaml:10:6: the key has no spelling",
        "keys.yaml:11:6: the key may be any text",
        "keys.yaml:12:32: aliases of a key with two flags",
        "keys.yaml:12:90: bridge needs path",
    ):
        assert expected in text
    assert len(text.splitlines()) == 9


def test_every_contradiction_between_keys_is_reported_at_once(tmp_path: Path) -> None:
    text = errors_of(
        tmp_path,
        "argument_names: {x: [aa]}\n"
        "enums: {E: {one: 1}}\n"
        "keys:\n"
        "  a: {type: str, values: [one, two], enum: E, megatron_lm: {flag: --a}}\n"
        "  b: {type: int, megatron_lm: {flag: --a}, bridge: {path: model.b}}\n"
        "  c: {type: int, bridge: {path: model.b}}\n",
    )
    assert [line.partition("keys.yaml:")[2] for line in text.splitlines()] == [
        "5:21: x sets aa, which is no key (did you mean a?)",
        "8:6: the values of a are not the members of E",
        "9:6: --a belongs to a already",
        "10:6: model.b belongs to b already",
    ]


def test_a_shorthand_sets_values_that_its_keys_may_have(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    frame = FRAME.replace("shorthands: {}", "shorthands: {--x: {a: three, b: 1}}")
    path.write_text(f"{frame}keys: {{a: {{type: str, values: [one], bridge: {{path: m.a}}}}}}\n", encoding="utf-8")
    with pytest.raises(RuleBaseError) as error:
        load_table(path, ConfigKeyTable)
    assert "keys.yaml:1:23: three is no value of a" in str(error.value)
    assert "keys.yaml:1:33: b is no config key" in str(error.value)


def test_what_an_option_implies_are_values_that_its_keys_may_have(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    implied = "options: {}, implied_by_none: {--x: {a: three}}, implied_above_one: {--y: [b]}"
    frame = FRAME.replace("options: {}", implied)
    path.write_text(f"{frame}keys: {{a: {{type: str, values: [one], bridge: {{path: m.a}}}}}}\n", encoding="utf-8")
    with pytest.raises(RuleBaseError) as error:
        load_table(path, ConfigKeyTable)
    assert "three is no value of a" in str(error.value)
    assert "--y sets b, which is no key" in str(error.value)
