"""Recognises what looks like a secret, so that it never reaches the disk."""

import re
from collections.abc import Mapping, Sequence

from efprof.model import HIDDEN

_NAME = (
    r"(?<!max_)(?<!max-)token(?!i[sz]|s(?![a-z]))|secret|passw|passphrase|credential|api[-_]?key|private[-_]?key"
    r"|access[-_]?key|auth(?!or)"
)
_SECRET_WORDS = ("token", "secret", "pass", "credential", "key", "auth")
"""One of these is in everything that `_NAME` fits."""

SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
"""In the name of a variable or an option. `--tokenizer`, `--max-tokens` and `--author` are not secrets."""

SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)[\w.\-]{12,}"
    r"|(?<=://)[^/\s:@]*:[^@\s/]+(?=@)"
)
"""Tokens of the well-known services by their prefix, and the name and password in a URL."""


SECRET_LITERAL = re.compile(
    rf"((?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?:{_NAME})[\w-]{{0,40}}[\"']?\]?[ \t]{{0,8}}"
    r"(?::[^=\"'\n]{0,40}=|[:=])[ \t]{0,8})(?P<quote>[\"'])(?:(?!(?P=quote))[^\n\\]|\\.){6,}(?P=quote)",
    re.IGNORECASE,
)
"""A quoted text given to a name that says secret: `password = "..."`, `"api_key": "..."`; not `pad_token="[PAD]"`."""

SECRET_LINE = re.compile(rf"(?:{_NAME})[\w-]*[\"']?\s*[:=]\s*(?=\S)", re.IGNORECASE)
"""The beginning of such a line in a file that is no program: `API_KEY=...`, `password: ...`."""

PRIVATE_KEY = re.compile(r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)")

HARMLESS_VALUE = re.compile(r"-?\d{1,9}(\.\d{0,9})?|(?i:true|false|null|none|)|<[|\w]{0,20}>|\[[A-Z]{1,8}\]")
"""Of a configuration: numbers, switches and special tokens such as `</s>` are no secrets, whatever their key."""


def without_secrets(text: str) -> str:
    """`text` with what looks like a token, a URL's password, a private key or a secret's value hidden."""
    text = SECRET_VALUE.sub(HIDDEN, text)
    text = PRIVATE_KEY.sub(lambda key: HIDDEN + "\n" * key[0].count("\n"), text)  # no line may change its number
    lines = text.split("\n")
    hidden = rf"\1\g<quote>{HIDDEN}\g<quote>"
    return "\n".join(SECRET_LITERAL.sub(hidden, line) if _may_name_secret(line) else line for line in lines)


def _may_name_secret(line: str) -> bool:
    """Told at a tenth of what the expression costs: whole source files pass through here."""
    lowered = line.lower()
    return any(word in lowered for word in _SECRET_WORDS)


def without_secret_line(line: str) -> str:
    """The same for a line of a file that is no program, where values need no quotes."""
    found = SECRET_LINE.search(line)
    return without_secrets(line) if found is None else f"{line[: found.end()]}{HIDDEN}"


def without_secret_values(values: Mapping[str, str]) -> dict[str, str]:
    """Values by their dotted keys, those hidden whose key, or a part of it, says that it is a secret."""
    return {
        key: HIDDEN
        if SECRET_NAME.search(key) and not HARMLESS_VALUE.fullmatch(value)
        else "\n".join(map(without_secret_line, value.split("\n")))
        for key, value in values.items()
    }


def without_secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if not SECRET_NAME.search(name) and not SECRET_VALUE.search(value)
    }


def without_secret_words(command: Sequence[str]) -> list[str]:
    """The command with the values of options and variables that name a secret hidden, and what looks like one."""
    clean, hides_next = [], False
    for word in command:
        # `--key=value`, `KEY=value` and `key: value` at their separator.
        name, separator, value = (*re.split("([=:])", word, maxsplit=1), "", "")[:3]
        is_secret = bool(SECRET_NAME.search(name))
        if hides_next:
            clean.append(HIDDEN)
        elif value and is_secret:
            clean.append(f"{name}{separator}{HIDDEN}")
        else:
            clean.append(without_secrets(word))
        hides_next = word.startswith("-") and not separator and is_secret
    return clean
