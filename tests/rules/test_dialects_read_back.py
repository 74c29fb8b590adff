"""What is written for a launcher means the same when it is read from a command line."""

from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rules.test_dialects import edit, spelled
from three_walls.inputs.config.command_line import read_command_line
from three_walls.inputs.config.merge import merge_sources
from three_walls.model.config import ConfigData, ConfigValue, RunConfig
from three_walls.model.config_keys import ConfigKey
from three_walls.overrides.spell import spell
from three_walls.tables.config_keys import config_keys


def _values_of(key: ConfigKey) -> st.SearchStrategy[ConfigData]:
    words = st.from_regex(r"[A-Za-z(][\w.|*()+ -]{0,12}", fullmatch=True)
    numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
    plain: dict[str, st.SearchStrategy[ConfigData]] = {
        "bool": st.booleans(),
        "int": st.integers(-(10**9), 10**9),
        "float": numbers,
        "str": words,
        "any": words,
    }
    element = {"list": "str", "int_list": "int", "str_or_list": "str", "float_or_list": "float"}.get(key.type, key.type)
    if key.pattern is not None:  # a value of another form is withheld when it is read, as a secret may be
        plain["any"] = st.from_regex(key.pattern, fullmatch=True).filter(lambda text: not {*" ,[]()"} & {*text})
    one = st.sampled_from(key.values) if key.values else plain[element]
    if element == key.type:
        return one
    several = st.lists(one, min_size=2 if key.type.endswith("_or_list") else 1, max_size=3).map(tuple)
    return st.one_of(one, several) if key.type.endswith("_or_list") else several


WRITABLE = [key for key in config_keys().keys.values() if key.megatron_lm is not None]


@settings(deadline=None)
@given(st.data(), st.sampled_from(WRITABLE))
def test_flags_that_are_written_are_read_back(data: st.DataObject, key: ConfigKey) -> None:
    value = data.draw(_values_of(key))
    found = spelled(edit(key.name, value))
    if not found.megatron_lm:
        elements = value if isinstance(value, tuple) else (value,)
        assert key.type == "bool" or any(" " in str(element) for element in elements)
        return
    words = [word for line in found.megatron_lm for word in line.split()]
    read = merge_sources(
        [read_command_line(["pretrain_gpt.py", "--yaml-cfg", "x", "--swiglu", "--bf16", "--fp16", *words])]
    )
    if key.name != "num_moe_experts" or value != 0:
        assert read.values[key.name] == ConfigValue(value, "command line")


@settings(deadline=None)
@given(st.data(), st.sampled_from([key for key in config_keys().keys.values() if key.bridge is not None]))
def test_overrides_that_are_written_are_read_back(data: st.DataObject, key: ConfigKey) -> None:
    value = data.draw(st.one_of(st.none(), _values_of(key)))
    config = RunConfig(MappingProxyType({"comm_overlap": ConfigValue("CommOverlapConfig", "dump")}))
    found = spell([edit(key.name, value)], config, "main")
    if found.bridge and "num_sms" not in key.name and key.name != "num_moe_experts":
        read = merge_sources([read_command_line(["run_recipe.py", *found.bridge])])
        assert read.values[key.name].value == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for key in config_keys().keys.values()
        if key.bridge is not None
        for value in ((True, False) if key.type == "bool" else (*key.values, None))
    ],
    ids=lambda one: one.name if isinstance(one, ConfigKey) else str(one),
)
def test_every_allowed_value_of_every_key_is_read_back_from_its_override(key: ConfigKey, value: ConfigData) -> None:
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
            assert merge_sources([read]).values[key.name].value == to
