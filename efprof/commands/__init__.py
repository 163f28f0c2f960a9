"""One file per subcommand: it parses, calls and prints; no logic. Here is what several of them do alike."""

import click


def print_json(result: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
