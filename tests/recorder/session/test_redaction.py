"""No secret reaches the disk: not from the environment, the command, a source file or an error."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.run_file import read_sources
from efprof.model import HIDDEN
from efprof.recorder.launch.machine import kept_environment
from efprof.recorder.session.redaction import (
    without_secret_line,
    without_secret_values,
    without_secret_words,
    without_secrets,
)
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder

SECRETS = st.text(string.ascii_letters + string.digits + "_-.", min_size=8).map(lambda text: f"Q{text}q")
PREFIXES = st.sampled_from(["hf_", "sk-", "ghp_", "gho_", "github_pat_", "glpat-", "xoxb-", "AKIA", "eyJ"])
TOKENS = st.builds(
    lambda prefix, rest: prefix + rest, PREFIXES, st.text(string.ascii_letters, min_size=16, max_size=40)
)
NAMES = st.sampled_from(
    ["token", "api-key", "api_key", "apikey", "password", "secret", "auth", "credentials", "hub_token", "private-key"]
)
WORDS = st.lists(st.sampled_from(["python", "train.py", "--epochs", "3", "--lr=0.1", "-v"]), max_size=4)


@given(name=NAMES, secret=SECRETS, before=WORDS, after=WORDS)
def test_the_value_of_an_option_that_names_a_secret_is_hidden(
    name: str, secret: str, before: list[str], after: list[str]
) -> None:
    spellings = [[f"--{name}={secret}"], [f"--{name}", secret], [f"{name.upper()}={secret}"], [f"-{name}", secret],
                 [f'{{"{name}": "{secret}"}}'], [f"+trainer.{name}={secret}"]]  # fmt: skip
    for words in spellings:
        clean = without_secret_words([*before, *words, *after])
        assert secret not in " ".join(clean)
        assert len(clean) == len(before) + len(words) + len(after)


@given(token=TOKENS, before=WORDS, name=st.sampled_from(["--hub=", "", "--run-name=x/", "https://x?key="]))
def test_a_value_that_looks_like_a_token_is_hidden_wherever_it_stands(token: str, before: list[str], name: str) -> None:
    assert token not in " ".join(without_secret_words([*before, f"{name}{token}"]))
    assert token not in without_secrets(f"401 for '{token}': not allowed")


@given(user=SECRETS, password=SECRETS)
def test_the_password_in_an_address_is_hidden(user: str, password: str) -> None:
    clean = without_secrets(f"cannot reach https://{user}:{password}@host/path")
    assert password not in clean
    assert clean.endswith("@host/path")


@given(secret=SECRETS, token=TOKENS)
def test_variables_that_look_like_secrets_are_not_kept(secret: str, token: str) -> None:
    environment = {"TORCH_API_KEY": secret, "NCCL_TOKEN": secret, "TORCH_HOME": token, "HF_TOKEN": secret,
                   "OMP_NUM_THREADS": "4", "TORCH_INDEX": f"https://me:{secret}@host/"}  # fmt: skip
    assert kept_environment(environment) == {"OMP_NUM_THREADS": "4"}


ORDINARY = [
    ["python", "train.py", "--tokenizer", "gpt2"],
    ["--max-tokens", "512"],
    ["--max_tokens=512"],
    ["--author=me", "data:/x", "--config=a.toml"],
    ["torchrun", "--rdzv-endpoint=host:29500"],
]


@pytest.mark.parametrize("command", ORDINARY)
def test_ordinary_options_are_left_as_they_are(command: list[str]) -> None:
    assert without_secret_words(command) == command


def test_a_token_in_a_source_file_is_hidden(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text('login("hf_abcdefghijklmnopqrstuvwx")\nloss.backward()\n')
    folder = RankFolder(tmp_path)
    assert Sites(tmp_path, LineWriter(folder, "sources.jsonl").write).file(str(source)) == "train.py"
    assert read_sources(folder.path) == {"train.py": [f'login("{HIDDEN}")', "loss.backward()"]}


@given(name=NAMES, secret=SECRETS, quote=st.sampled_from("\"'"))
def test_a_quoted_value_given_to_a_name_that_says_secret_is_hidden(name: str, secret: str, quote: str) -> None:
    variable = name.replace("-", "_")
    for line in (f"{variable} = {quote}{secret}{quote}", f"self.{variable}: str = {quote}{secret}{quote}",
                 f"call({variable}={quote}{secret}{quote}, lr=1)", f"{{{quote}{name}{quote}: {quote}{secret}{quote}}}",
                 f"os.environ[{quote}{variable.upper()}{quote}] = {quote}{secret}{quote}"):  # fmt: skip
        assert secret not in without_secrets(f"x = 1\n{line}\n")
    other = "'" if quote == '"' else '"'
    assert secret not in without_secrets(f"{variable} = {quote}{other}{secret}\\{quote}{secret}{quote}")


CODE = [
    'pad_token = "<|endoftext|>"',
    'tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")',
    "token = next(tokens)",
    'self.token_embedding = Embedding("sinusoidal")',
    'author = "somebody else"',
    "max_tokens: int = 512",
]


@pytest.mark.parametrize("line", CODE)
def test_ordinary_code_is_left_as_it_is(line: str) -> None:
    assert without_secrets(line) == line


def test_a_private_key_is_hidden_and_no_line_changes_its_number() -> None:
    text = "a\n-----BEGIN RSA PRIVATE KEY-----\nhunter\n-----END RSA PRIVATE KEY-----\nb\n"
    clean = without_secrets(text)
    assert "hunter" not in clean
    assert clean.split("\n")[4:] == ["b", ""]


@given(name=NAMES, secret=SECRETS)
def test_a_value_without_quotes_is_hidden_in_a_file_that_is_no_program(name: str, secret: str) -> None:
    for line in (f"{name}: {secret}", f"{name.upper()}={secret}", f"+ {name} = {secret}"):
        assert secret not in without_secret_line(line)


@given(name=NAMES, secret=SECRETS)
def test_values_of_a_configuration_are_hidden_by_their_keys(name: str, secret: str) -> None:
    values = {f"hub.{name}": secret, f"{name}.value": secret, "text": f"lr: 1\n{name}: {secret}\n", "lr": "0.1"}
    clean = without_secret_values(values)
    assert secret not in " ".join(clean.values())
    assert clean["lr"] == "0.1"


def test_numbers_switches_and_special_tokens_of_a_configuration_are_kept() -> None:
    values = {"model.token_dim": "512", "use_auth": "false", "pad_token": "[PAD]", "bos_token": "<s>", "token": "null"}
    assert without_secret_values(values) == values
