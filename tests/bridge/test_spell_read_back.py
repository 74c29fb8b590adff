"""What is written for a launcher means the same when it is read from a command line."""

import re
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bridge.builders import edit, spelled
from tests.try_each import try_each
from three_walls.bridge.render_overrides import spell
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.tables.config_keys import ConfigKey, config_keys

ELEMENTS = {"list": "str", "int_list": "int", "str_or_list": "str", "float_or_list": "float"}
KEYS = config_keys().keys.values()


def _values_of(key: ConfigKey) -> st.SearchStrategy[ConfigData]:
    """Values that the key may have. A text of any other form is withheld when it is read: it may be a secret."""
    element = ELEMENTS.get(key.type, key.type)
    scalars: dict[str, st.SearchStrategy[ConfigData]] = {
        "bool": st.booleans(),
        "int": st.integers(-(10**9), 10**9),
        "float": st.floats(-1e6, 1e6, allow_subnormal=False),
    }
    choices = [st.sampled_from(key.values)] if key.values else []
    if key.pattern is not None:
        choices.append(st.from_regex(key.pattern, fullmatch=True).filter(_is_read_as_text))
    if not choices:
        choices.append(scalars[element])  # a text has values or a pattern
    scalar = st.one_of(choices)
    if element == key.type:
        return scalar
    several = st.lists(scalar, min_size=2 if key.type.endswith("_or_list") else 1, max_size=3).map(tuple)
    return st.one_of(scalar, several) if key.type.endswith("_or_list") else several


def _is_read_as_text(text: str) -> bool:
    """The word 12 is a number in every launcher: no line can hold it as text."""
    return re.fullmatch(r"[-+]?\d+", text) is None


def _must_be_set_by_hand(element: object) -> bool:
    return isinstance(element, str) and (element.split() != [element] or element.startswith("-"))


@settings(deadline=None)
@given(st.data(), st.sampled_from([key for key in KEYS if key.megatron_lm is not None]))
def test_flags_that_are_written_are_read_back(data: st.DataObject, key: ConfigKey) -> None:
    value = data.draw(_values_of(key))
    spelling = key.megatron_lm
    assert spelling is not None
    release = "main" if spelling.since or spelling.value_since else "0.3.1"  # one that has the flag and its values
    found = spelled(edit(key.name, value), version=release)
    if not found.megatron_lm:
        elements = value if isinstance(value, tuple) else (value,)
        assert key.type == "bool" or any(map(_must_be_set_by_hand, elements))
        return
    words = [word for line in found.megatron_lm for word in line.split()]
    read = merge_sources(
        [read_command_line(["pretrain_gpt.py", "--yaml-cfg", "x", "--swiglu", "--bf16", "--fp16", *words])]
    )
    if key.name != "num_moe_experts" or value != 0:
        assert read.values[key.name] == ConfigValue(value, "command line")


@pytest.mark.slow
@settings(deadline=None)
@given(st.data(), st.sampled_from([key for key in KEYS if key.bridge is not None]))
def test_overrides_that_are_written_are_read_back(data: st.DataObject, key: ConfigKey) -> None:
    value = data.draw(st.one_of(st.none(), _values_of(key)))
    config = RunConfig(MappingProxyType({"comm_overlap": ConfigValue("CommOverlapConfig", "dump")}))
    found = spell([edit(key.name, value)], config, "main")
    if found.bridge and "num_sms" not in key.name and key.name != "num_moe_experts":
        read = merge_sources([read_command_line(["run_recipe.py", *found.bridge])])
        assert read.values[key.name].value == value


@pytest.mark.parametrize("text", ["([0] * 3)", "[1,0]", "1+2", "12", "*", " "])
def test_every_text_of_a_key_that_takes_several_forms_is_read_back_or_set_by_hand(text: str) -> None:
    found = spelled(edit("moe_layer_freq", text))
    read = read_command_line(["run_recipe.py", *found.bridge]).values["moe_layer_freq"].value
    assert str(read) == text
    assert bool(found.megatron_lm) is not _must_be_set_by_hand(text)


def test_a_text_that_begins_as_a_flag_does_is_set_by_hand() -> None:
    assert spelled(edit("hybrid_override_pattern", "M-M-")).megatron_lm == ("--hybrid-override-pattern M-M-",)
    found = spelled(edit("hybrid_override_pattern", "-M-M"))
    assert found.megatron_lm == ()
    assert "Megatron-LM: set --hybrid-override-pattern by hand to '-M-M'" in found.notes


OVERRIDES: list[tuple[ConfigKey, ConfigData]] = [
    (key, value)
    for key in KEYS
    if key.bridge is not None
    for value in ((True, False) if key.type == "bool" else (*key.values, None))
]


@try_each(OVERRIDES, lambda of: f"{of[0].name}={of[1]}")
def test_every_allowed_value_of_every_key_is_read_back_from_its_override(of: tuple[ConfigKey, ConfigData]) -> None:
    key, value = of
    to = (value,) if value is not None and key.type in ("list", "int_list") else value
    with_objects = {
        "comm_overlap": ConfigValue("CommOverlapConfig", "dump"),
        "mixed_precision": ConfigValue("MixedPrecisionConfig", "dump"),
    }
    for config in (RunConfig(), RunConfig(MappingProxyType(with_objects))):
        found = spell([edit(key.name, to)], config, "main")
        read = read_command_line(["run_recipe.py", *found.bridge])
        assert not [name for name in read.unknown if name != "comm_overlap._target_"]
        if found.bridge and "num_sms" not in key.name:
            values = merge_sources([read]).values
            name = key.name if key.name in values else "cuda_graph_modules"  # the newer name of cuda_graph_scope
            assert values[name].value == to
