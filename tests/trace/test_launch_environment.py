"""Only allowed variables are read; a secret's value never is."""

from hypothesis import given, settings
from hypothesis import strategies as st

from three_walls.trace.launch_record import UNNAMED_VARIABLE, read_environment, secret_names

ROWS = [
    'RANK="3"',
    'LOCAL_WORLD_SIZE="8"',
    'CUDA_DEVICE_MAX_CONNECTIONS="32"',
    "NCCL_DEBUG=INFO",
    'NVTE_FWD_LAYERNORM_SM_MARGIN="16"',
    'NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN="8"',
    'NUM_OF_TOKENS_PER_CHUNK_COMBINE_API="128"',
    'PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"',
    'NCCL_EMPTY=""',
    'HOME="/home/someone"',
    'WANDB_API_KEY="s3cr3t"',
    'HF_TOKEN="s3cr3t"',
    'NCCL_SECRET_THING="s3cr3t"',
    'MY_PASSWORD=""',
    "no separator",
]


def test_allowed_variables_are_read_without_their_quotes() -> None:
    found = {name: value.value for name, value in read_environment(ROWS).items()}
    assert found == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "LOCAL_WORLD_SIZE": "8",
        "NCCL_DEBUG": "INFO",
        "NCCL_EMPTY": "",
        "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "8",
        "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "128",
        "NVTE_FWD_LAYERNORM_SM_MARGIN": "16",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "RANK": "3",
    }
    assert {value.source for value in read_environment(ROWS).values()} == {"environment"}


def test_secrets_are_named_and_never_read() -> None:
    assert secret_names(ROWS) == ("HF_TOKEN", "NCCL_SECRET_THING", "WANDB_API_KEY")
    assert "s3cr3t" not in repr(read_environment(ROWS)) + repr(secret_names(ROWS))


def test_a_text_that_is_no_name_is_not_shown_as_one() -> None:
    rows = ["https://adams-host/?token=abc", "WANDB_API_KEY=def"]
    assert secret_names(rows) == ("WANDB_API_KEY", UNNAMED_VARIABLE)


@settings(deadline=None)
@given(
    st.sampled_from(["NCCL_", "NVTE_", "TORCH_NCCL_", ""]),
    st.sampled_from(["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"]),
)
def test_an_allowed_prefix_does_not_let_a_secret_through(prefix: str, word: str) -> None:
    assert read_environment([f'{prefix}{word}="x"', f'{prefix}MY_{word}="x"']) == {}


@settings(deadline=None)
@given(st.lists(st.text()))
def test_no_rows_make_it_fail(rows: list[str]) -> None:
    read_environment(rows)
    secret_names(rows)
