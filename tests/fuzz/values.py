"""Values that programs stumble over, and texts that look like what the program searches for."""

from __future__ import annotations

from random import Random
from typing import Any

MARKUP = "<zq9 onload=alert(1)>"
"""Raw in a page, it would be an element."""

NUMBERS = (
    "0",
    "-1",
    "1",
    "NULL",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775806",
    "4611686018427387904",
    "9007199254740993",
    "2147483648",
    "4294967295",
    "281474976710656",
    "1e308",
    "-1e308",
    "9e999",
    "-9e999",
    "0.5",
    "1e-320",
    "''",
    "'12'",
    "'x'",
    "x''",
    "x'00'",
    "x'ffffffffffffffff'",
)
"""As SQL: every column of SQLite may hold any of them."""

TEXTS = (
    "''",
    "NULL",
    "12",
    "1.5",
    "x'fffe'",
    "CAST(x'ff' AS TEXT)",
    "CAST(x'c3' AS TEXT)",
    "CAST(x'eda080' AS TEXT)",
    "CAST(x'2f686f6d652fe9' AS TEXT)",
    "CAST(x'610062' AS TEXT)",
    "char(0)",
    "char(27) || '[31m'",
    "char(8238) || 'abc'",
    "'a' || char(10) || 'b'",
    "char(13, 10)",
    "'$(touch PWNED)'",
    "'`touch PWNED`'",
    "'; touch PWNED; '",
    f"'{MARKUP}'",
    "'</script><zq9>'",
    "'=cmd|calc'",
    "'%s%n{0}{step_ns:percent}'",
    "'../../../etc/passwd'",
    "'-rf'",
    "char(1114111)",
    "replace(hex(zeroblob(20000)), '00', 'ab')",
    "replace(hex(zeroblob(9000)), '00', '<')",
    "replace(hex(zeroblob(9000)), '00', 'a::')",
    "replace(hex(zeroblob(9000)), '00', '/a')",
    "replace(hex(zeroblob(9000)), '00', ' ')",
    "replace(hex(zeroblob(3000)), '00', 'a.b-')",
    "replace(hex(zeroblob(5000)), '00', '9')",
    "'training_step_' || replace(hex(zeroblob(3000)), '00', '9')",
    "'training_step_7 of 1000'",
    "'training_step_-1'",
    "'aten::mm, seq = 1, op_id = 2, sizes = [[999999999999, 8], [8]]'",
    "'aten::mm, sizes = ' || replace(hex(zeroblob(4000)), '00', '[')",
    "'nccl:' || char(9)",
    "'ncclDevKernel_SendRecv'",
    "'ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)'",
    "'cudaGraphLaunch_v10000'",
    "'cudaMalloc_v3020'",
    "'void cutlass::Kernel2<' || replace(hex(zeroblob(3000)), '00', 'a<') || '>'",
    "'nvjet_sm90_tst_99999999999x0_64x4'",
)
"""As SQL."""

WORDS = (
    "0",
    "-1",
    "1",
    "1e308",
    "-1e308",
    "1e999",
    "nan",
    "inf",
    "-inf",
    "NaN",
    "None",
    "null",
    "true",
    "False",
    "''",
    "[]",
    "{}",
    "[1, 2]",
    "9223372036854775808",
    "1_000",
    "0x10",
    "1e-320",
    "08",
    "--",
    "=",
    "!!python/object:os.system",
    "*a",
    "&a",
    "<<",
    "$(touch PWNED)",
    "`touch PWNED`",
    "; touch PWNED",
    "'",
    '"',
    "\\",
    "\x00",
    "\x1b[31m",
    "\x85",
    "\u2028",
    "\u202e",
    "\udcff",
    "\ufeff",
    MARKUP,
    "${oc.env:HOME}",
    "../../x",
    "a" * 300,
    "| |",
    '"\\e[31m\\u202e"',
    '"\\0\\x07"',
    f'"{MARKUP}"',
    '"\\uDCFF"',
    "2026-13-45",
    "!!binary aGk=",
    "? x",
    ": :",
    "\r",
    "\t",
    "%s",
)
"""As text, for logs, YAML, overrides and settings."""

FLAGS = (
    "--num-layers",
    "--hidden-size",
    "--num-experts",
    "--moe-router-topk",
    "--micro-batch-size",
    "--global-batch-size",
    "--seq-length",
    "--expert-model-parallel-size",
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--recompute-granularity",
    "--recompute-modules",
    "--moe-layer-freq",
    "--fp8-format",
    "--cuda-graph-scope",
    "--num-layers-per-virtual-pipeline-stage",
    "--pipeline-model-parallel-layout",
    "--num-query-groups",
    "--moe-token-dispatcher-type",
    "--attention-backend",
    "--bf16",
    "--swiglu",
    "--no-such-flag",
)

SETTINGS = (
    "model.num_layers",
    "num_moe_experts",
    "model.hidden_size",
    "model.seq_length",
    "train.global_batch_size",
    "train.micro_batch_size",
    "expert_model_parallel_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "moe_router_topk",
    "model.moe_layer_freq",
    "model.recompute_granularity",
    "recompute_modules",
    "cuda_graph_scope",
    "model.pipeline_model_parallel_layout",
    "env_vars.WORLD_SIZE",
    "env_vars.NCCL_DEBUG",
    "env_vars.CUDA_DEVICE_MAX_CONNECTIONS",
    "model.fp8",
    "ffn_hidden_size",
    "moe_ffn_hidden_size",
    "no_such_key",
    "",
    "model",
)

NAMES = (
    "rank 0",
    "$(touch PWNED)",
    "`touch PWNED`",
    "a;touch PWNED",
    "new\nline",
    "\x1b[31mred",
    "it's",
    'quote"d',
    "\udcff\udcfe",
    "\u202egnp",
    f"{MARKUP.replace('/', '')}",
    "%2f?mode=rwc",
    "a#b",
    "file:x",
    "*",
    "~",
    "a\\b",
    "=1+1",
    "x" * 200,
    "&amp;",
    "{0}",
)
"""Names of files without their suffix; none begins with a dash, which is an option's."""


def pick_number(random: Random) -> str:
    """A number or something else in its place, as SQL."""
    if random.random() < 0.2:
        return str(random.randrange(-(1 << 63), 1 << 63))
    return str(random.randrange(1 << random.randrange(1, 40))) if random.random() < 0.2 else random.choice(NUMBERS)


def pick_text(random: Random) -> str:
    """A text or something else in its place, as SQL."""
    if random.random() < 0.15:
        return f"CAST(x'{random.randbytes(random.randrange(1, 40)).hex()}' AS TEXT)"
    return random.choice(TEXTS)


def pick_word(random: Random) -> Any:
    """A word of a text file, possibly long (see ``case.py``)."""
    if random.random() < 0.15:
        return {"times": [random.choice("9a [({<'\"-=/.:|*&\t\\_,"), random.choice((50, 400, 5_000, 15_000, 60_000))]}
    if random.random() < 0.1:
        return {"hex": random.randbytes(random.randrange(1, 20)).hex()}
    return random.choice(WORDS)


def pick_datum(random: Random) -> Any:
    """A value within data."""
    return random.choice(
        (
            None,
            True,
            False,
            0,
            -1,
            1,
            1 << 63,
            -(1 << 63),
            1 << 70,
            1e308,
            -1.5,
            float("inf"),
            float("nan"),
            "",
            "x",
            [],
            {},
            [[]],
            {"a": {}},
            {"nested": 30},
            {"nested": 300},
            {"digits": 400},
            {"digits": 4_000},
            {"times": ["a", 50_000]},
            {"times": ["/", 9_000]},
            *(word for word in WORDS if word.isascii()),
        )
    )
