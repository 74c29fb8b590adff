"""Reads training logs: the only place that knows how files, lines and blocks come together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from three_walls.knowledge.log_grammar import LogGrammar, log_grammar
from three_walls.log.blocks import Block, open_block
from three_walls.log.collector import Collector
from three_walls.log.files import find_logs, read_chunks
from three_walls.log.lines import read_line, strip_prefixes
from three_walls.log.scan import scan_lines
from three_walls.vocabulary.training_log import TrainingLog


def read_logs(paths: Sequence[Path]) -> TrainingLog:
    """What the logs of one run say: files, or directories of them; Megatron-LM's or Megatron-Bridge's.

    Lines may carry prefixes of launchers, several processes may write in between. Memory does not grow with the
    files' size. A file of anything else says nothing. Raises InputError for what cannot be read.
    """
    collector = Collector()
    files = find_logs(paths)
    for path in files:
        read_text(read_chunks(path), collector, path.name)
    return collector.result(tuple(path.name for path in files))


def read_text(chunks: Iterable[bytes], collector: Collector, file_name: str) -> None:
    """One file's text into ``collector``."""
    grammar = log_grammar()
    blocks: dict[str, Block] = {}
    for raw in scan_lines(chunks, grammar.anchors, lambda: bool(blocks)):
        _read_raw(raw, grammar, blocks, collector, file_name)
    for block in blocks.values():
        collector.add_block(block)


def _read_raw(raw: bytes, grammar: LogGrammar, blocks: dict[str, Block], collector: Collector, file_name: str) -> None:
    line = strip_prefixes(raw.decode("utf-8", "replace"), grammar.prefixes)
    opened = open_block(line, raw, grammar, collector.blocks.keys())
    if opened:
        if line.origin in blocks:
            collector.add_block(blocks.pop(line.origin))
        blocks[line.origin] = opened
        return
    for origin, block in list(blocks.items()):
        block.read(line)
        if block.is_closed:
            collector.add_block(blocks.pop(origin))
    statements, torn = read_line(line, raw, grammar)
    for said in statements:
        collector.add(said, file_name)
    collector.torn += torn.count("iteration")
