"""One file per subcommand: it parses, calls and prints; no logic. Here is what several of them do alike."""

import click

COMMAND = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")


def print_json(result: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
