"""Ports for servers that a test starts, and that have to be told theirs."""

import itertools
import os
import socket

FIRST, SPAN = 10_000, 22_000
given = itertools.count(os.getpid() * 1009)


def free_port():
    """A port that nobody listens on. Each is given once; and they are below those that the system gives to whoever
    connects, one of which might be taken before the server is there."""
    for nth in itertools.islice(given, SPAN):
        port = FIRST + nth % SPAN
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("none of so many ports is free")
