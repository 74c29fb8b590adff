"""The vocabulary of a Megatron-Bridge run, as far as its saved configuration tells.

Bridge saves the configuration before it builds the tokenizer, and only then knows the vocabulary: it takes the
tokenizer's where the model has none (or where ``tokenizer.use_tokenizer_vocab_size`` says so) and pads it, and leaves
the model's own size as it is. A checkpoint's copy is saved after that, and ``model.should_pad_vocab`` says which.

Source: ``_validate_and_set_vocab_size`` in megatron/bridge/training/setup.py; runs of Bridge 0.3.1 to 0.6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from three_walls.inputs.config.collected import Settings

_SIZE_IS_GIVEN = "NullTokenizer"
"""The tokenizer whose size stands in the configuration; the others' stands in their files."""


def give_vocabulary(config: Mapping[str, Any], settings: Settings) -> None:
    """Add what ``config`` (values by path) says of the vocabulary: its size, or the size padded."""
    model = _size(config.get("model.vocab_size"))
    is_padded_later = config.get("model.should_pad_vocab") is True
    if model and is_padded_later:
        return
    if model and config.get("tokenizer.use_tokenizer_vocab_size") is not True:
        if "model.should_pad_vocab" in config:
            settings.give("padded_vocab_size", model)
        return
    tokenizer = _size(config.get("tokenizer.vocab_size"))
    if tokenizer and config.get("tokenizer.tokenizer_type") == _SIZE_IS_GIVEN:
        settings.give("vocab_size", tokenizer)


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
