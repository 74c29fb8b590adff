"""The table of config keys: complete, unambiguous, well-typed."""

from pathlib import Path

import pytest

from three_walls.model.config_keys import ConfigKey
from three_walls.model.errors import RuleBaseError
from three_walls.tables.config_keys import (
    config_keys,
    flags_of,
    keys_by_flag,
    keys_by_path,
    load_config_keys,
    paths_of,
)
from three_walls.tables.config_values import is_allowed, is_of_type, read_words

KEYS = list(config_keys().keys.values())
FRAME = "shorthands: {}\ndefaults_unknown_with: []\nbridge_scripts: {recipe: [], options: {}}\nprecision_recipes: {}\n"


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_key_has_a_spelling_and_a_default_of_its_type(key: ConfigKey) -> None:
    assert flags_of(key) or paths_of(key) or (key.bridge is not None and key.bridge.in_force)
    assert all(is_of_type(key.type.removesuffix("_list").replace("list", "str"), value) for value in key.values)
    if key.megatron_lm is not None:
        assert is_allowed(key, key.megatron_lm.default)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
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


def test_every_error_of_a_table_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(
        FRAME
        + "keys:\n"
        + "  a: {type: integer, bridge: {path: model.a}}\n"
        + "  b: {type: int, wall: moon, megatron_lm: {flag: --b, default: x}}\n"
        + "  c: {type: int, megatron_lm: {flag: --b}}\n"
        + "  d: {type: int, colour: red}\n",
        encoding="utf-8",
    )
    with pytest.raises(RuleBaseError) as error:
        load_config_keys(path)
    text = str(error.value)
    for expected in (
        "keys.yaml:6:13: expected one of bool, int, float,",
        "keys.yaml:7:24: expected one of memory, communication, compute_host, found moon",
        "keys.yaml:7:6: the default of b is not of type int",
        "keys.yaml:8:6: --b belongs to b already",
        "keys.yaml:9:18: unknown key colour",
        "keys.yaml:9:6: d has no spelling",
    ):
        assert expected in text
