"""Reads YAML of unknown origin as plain data: no object is constructed, tags are dropped, size and depth are bounded.

The document is read event by event, so no nesting exhausts the stack. PyYAML's own composer recurses: in C, where that
cannot be bounded, or in Python, which takes nineteen times as long. An alias becomes the object of its anchor, not a
copy. Its entries are counted again all the same, because a walk over the data visits them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from three_walls.inputs import limits

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, several times as fast, where PyYAML has it
_TRUE = ("true", "yes", "on")
# Tags of Python objects that are names: !!python/name:torch.bfloat16 ''
_NAMING_TAG = "tag:yaml.org,2002:python/name:"

Plain = Any
"""dict by text, list, text, number, bool or None."""


def read_yaml(text: str) -> Plain:
    """The single document in ``text``; raises ValueError with a phrase for what was found instead, and where."""
    try:
        return _Builder().build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" on line {mark.line + 1}" if mark else ""
        raise ValueError(f"invalid YAML{where} ({error.problem or error.context})") from error
    except yaml.YAMLError as error:
        raise ValueError(f"invalid YAML ({str(error).partition(chr(10))[0]})") from error


class _Builder:
    """Builds plain data from events, on a stack of its own."""

    def __init__(self) -> None:
        self.resolver = yaml.SafeLoader("")
        self.anchors: dict[str, Plain] = {}
        self.open: list[tuple[Plain, list[Plain], str | None, int]] = []
        """Open collections: the object, the key that awaits its value (none or one), the anchor, entries before it."""
        self.entries = 0
        self.entries_of: dict[str, int] = {}
        self.root: list[Plain] = []

    def build(self, events: Iterator[yaml.Event]) -> Plain:
        for event in events:
            self.entries += 1
            if self.entries > limits.MOST_YAML_ENTRIES:
                raise ValueError(f"more than {limits.MOST_YAML_ENTRIES:,} entries")
            self._add(event)
        if not self.root:
            raise ValueError("nothing")
        return self.root[0]

    def _add(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent) and self.root:
            raise ValueError("more than one document")
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if len(self.open) >= limits.MOST_YAML_LEVELS:
                raise ValueError(f"more than {limits.MOST_YAML_LEVELS} levels{_where(event)}")
            collection: Plain = {} if isinstance(event, yaml.MappingStartEvent) else []
            self.open.append((collection, [], event.anchor, self.entries))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            collection, _, anchor, before = self.open.pop()
            self._place(collection, anchor)
            if anchor is not None:
                self.entries_of[anchor] = self.entries - before
        elif isinstance(event, yaml.ScalarEvent):
            self._place(self._scalar(event), event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise ValueError(f"an alias without an anchor before it{_where(event)}")
            self.entries += self.entries_of.get(event.anchor, 0)
            self._place(self.anchors[event.anchor], None)

    def _place(self, value: Plain, anchor: str | None) -> None:
        if anchor is not None:
            self.anchors[anchor] = value
        if not self.open:
            self.root.append(value)
            return
        collection, waiting, *_ = self.open[-1]
        if isinstance(collection, list):
            collection.append(value)
        elif waiting:
            collection[waiting.pop()] = value
        else:
            waiting.append(value if isinstance(value, str) else "" if isinstance(value, dict | list) else str(value))

    def _scalar(self, event: yaml.ScalarEvent) -> Plain:
        text = str(event.value)
        if event.tag is not None and event.tag.startswith(_NAMING_TAG):
            return event.tag.removeprefix(_NAMING_TAG)
        if event.tag is not None or not event.implicit[0]:  # tagged or quoted: text
            return text
        resolved = str(self.resolver.resolve(yaml.ScalarNode, text, event.implicit))  # type: ignore[no-untyped-call]
        tag = resolved.removeprefix("tag:yaml.org,2002:")
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() in _TRUE
        if tag in ("int", "float") and len(text) <= limits.LONGEST_YAML_NUMBER:
            return _number(text, tag)
        return text


def _where(event: yaml.Event) -> str:
    return f" on line {event.start_mark.line + 1}" if event.start_mark else ""


def _number(text: str, tag: str) -> Plain:
    """``text`` as a decimal number; base 60, octal and the like stay text."""
    digits = text.replace("_", "")
    try:
        if tag == "int":
            return text if digits.lstrip("+-").startswith("0") and int(digits) else int(digits)
        return float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return text
