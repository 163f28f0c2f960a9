"""Recognises what looks like a secret, so that it never reaches the disk."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

HIDDEN: Final = "<hidden>"

SECRET_NAME: Final = re.compile(
    r"(?i)(?<!max_)(?<!max-)token(?!i[sz]|s(?![a-z]))|secret|passw|passphrase|credential|api[-_]?key|private[-_]?key"
    r"|access[-_]?key|auth(?!or)"
)
"""In the name of a variable or an option. `--tokenizer`, `--max-tokens` and `--author` are not secrets."""

SECRET_VALUE: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)[\w.\-]{12,}"
    r"|(?<=://)[^/\s:@]*:[^@\s/]+(?=@)"
)
"""Tokens of the well-known services by their prefix, and the name and password in a URL."""


def without_secrets(text: str) -> str:
    """`text` with what looks like a token or a URL's password hidden."""
    return SECRET_VALUE.sub(HIDDEN, text)


def without_secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of which neither name nor value looks like a secret."""
    return {
        name: value
        for name, value in environment.items()
        if not SECRET_NAME.search(name) and not SECRET_VALUE.search(value)
    }


def without_secret_words(command: Sequence[str]) -> list[str]:
    """The command with the values of options and variables that name a secret hidden, and what looks like one."""
    clean, hides_next = [], False
    for word in command:
        name, separator, value = _split(word)
        is_secret = bool(SECRET_NAME.search(name))
        if hides_next:
            clean.append(HIDDEN)
        elif value and is_secret:
            clean.append(f"{name}{separator}{HIDDEN}")
        else:
            clean.append(without_secrets(word))
        hides_next = word.startswith("-") and not separator and is_secret
    return clean


def _split(word: str) -> tuple[str, str, str]:
    """`--key=value`, `KEY=value` and `key: value` at their separator."""
    found = re.search("[=:]", word)
    return (word, "", "") if found is None else (word[: found.start()], found[0], word[found.end() :])
