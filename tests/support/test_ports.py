"""A kept port is given to no other program, and the program that names it can listen there."""

import errno
import socket

import pytest
from torch.distributed import TCPStore

from tests.support.ports import kept_port

IP_LOCAL_PORT_RANGE = 51
"""Of <linux/in.h>, from Linux 6.3 on: the lowest and the highest port that the socket may be given."""


def test_a_program_that_asks_for_any_port_is_not_given_it() -> None:
    with kept_port() as kept, socket.socket() as other:
        number = kept.getsockname()[1]
        try:
            other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, (number | number << 16).to_bytes(4, "little"))
        except OSError:
            pytest.skip("needs Linux 6.3")
        with pytest.raises(OSError, match="in use") as raised:
            other.bind(("", 0))
        assert raised.value.errno == errno.EADDRINUSE
        kept.close()
        other.bind(("", 0))
        assert other.getsockname()[1] == number


def test_the_store_of_ranks_listens_there() -> None:
    with kept_port() as kept:
        number = kept.getsockname()[1]
        store = TCPStore("localhost", number, is_master=True, wait_for_workers=False)
        store.set("key", "value")
        assert TCPStore("localhost", number, is_master=False).get("key") == b"value"
