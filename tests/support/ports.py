"""A port of this machine that no other program is given before a test uses it."""

import socket


def kept_port() -> socket.socket:
    """A socket that is bound to a free port and does not listen; it is to be closed when the port is in use, or later.

    Linux gives a bound port to no program that asks for any. It lets a program that names the port listen on it, where
    both sockets allow that (`SO_REUSEADDR`, as torch's store does).
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("localhost", 0))
    return kept


def torchrun_variables(port: socket.socket, num_ranks: int) -> list[dict[str, str]]:
    """Of each rank, those that torchrun sets; their store listens on this port."""
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port.getsockname()[1]), "WORLD_SIZE": str(num_ranks)}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
