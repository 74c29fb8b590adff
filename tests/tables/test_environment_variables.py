"""Names that look like secrets, and names that only look as if they did."""

from pathlib import Path

import pytest

from three_walls.model.errors import RuleBaseError
from three_walls.tables.environment_variables import allowed_variables, load_allowed_variables


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "OAUTH_TOKEN_CACHE",
        "GITHUB_TOKEN",
        "TOKEN",
        "hf_token",
        "DB_PASSWORD",
        "MYSQL_PWD",
        "NGC_API_KEY",
        "SLURM_JWT",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
def test_secrets_look_secret_and_are_not_allowed(name: str) -> None:
    assert allowed_variables().looks_secret(name)
    assert not allowed_variables().allows(name)


@pytest.mark.parametrize(
    "name",
    ["PWD", "OLDPWD", "TIKTOKEN_CACHE_DIR", "TOKENIZERS_PARALLELISM", "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", "PATH"],
)
def test_folders_caches_and_counts_do_not_look_secret(name: str) -> None:
    assert not allowed_variables().looks_secret(name)


def test_every_error_of_the_list_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "variables.yaml"
    path.write_text(
        "forms: {number: {pattern: '('}}\n"
        "names:\n"
        "  A: {reason: who knows}\n"
        "  B: {form: numbr, reason: who knows}\n"
        "  C: {words: [x], pattern: y, reason: who knows}\n"
        "  D: {form: number, words: [x]}\n"
        "patterns: {'A(': {words: [no], reason: why}}\n"
        "secrets: ['B(']\n",
        encoding="utf-8",
    )
    with pytest.raises(RuleBaseError) as caught:
        load_allowed_variables(path)
    said = [line.partition("variables.yaml:")[2] for line in str(caught.value).splitlines()]
    assert [line for line in said if "has no form" in line] == [
        "3:6: A has no form: give it form, words, pattern or list_of"
    ]
    assert [line.partition(": ")[2].partition(":")[0] for line in said] == [
        "not a regular expression",
        "A has no form",
        "no form is called numbr (did you mean number?)",
        "words and pattern exclude each other",
        "key because is missing",
        "form and words exclude each other",
        "not a regular expression",
        "no is ambiguous",
        "not a regular expression",
    ]
