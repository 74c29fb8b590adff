"""Names that look like secrets, and names that only look as if they did."""

from pathlib import Path

import pytest

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table
from three_walls.tables.environment_variables import AllowedVariables, allowed_variables


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


def errors_of(folder: Path, text: str) -> list[str]:
    path = folder / "variables.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuleBaseError) as caught:
        load_table(path, AllowedVariables)
    return [line.partition("variables.yaml:")[2] for line in str(caught.value).splitlines()]


def test_every_error_of_the_list_is_reported_at_once(tmp_path: Path) -> None:
    found = errors_of(
        tmp_path,
        "forms: {number: {pattern: '('}}\n"
        "names:\n"
        "  A: {reason: who knows}\n"
        "  B: {form: number}\n"
        "  C: {words: [x], pattern: y, reason: who knows}\n"
        "  D: {form: number, words: [x], reason: who knows}\n"
        "patterns: {'A(': {words: [no], reason: why}}\n"
        "secrets: ['B(']\n"
        "alike: {}\n",
    )
    assert found[1].startswith("3:6: the variable has no form: give it form, words, pattern or list_of")
    assert [line.partition(": ")[2].partition(":")[0] for line in found] == [
        "not a regular expression",
        "the variable has no form",
        "key reason is missing",
        "words and pattern exclude each other",
        "form and words exclude each other",
        "not a regular expression",
        "no is ambiguous",
        "not a regular expression",
    ]


def test_every_form_that_is_named_exists(tmp_path: Path) -> None:
    found = errors_of(
        tmp_path,
        "forms: {number: {pattern: x}}\n"
        "names:\n"
        "  A: {form: numbr, reason: who knows}\n"
        "  B: {form: number, reason: who knows}\n"
        "patterns: {'A+': {form: words, reason: why}}\n"
        "secrets: []\n"
        "alike: {B: its source, C: its source}\n",
    )
    assert found == [
        "3:13: no form is called numbr (did you mean number?)",
        "5:25: no form is called words",
        "7:27: no entry allows it",
    ]
