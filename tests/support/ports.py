"""Ports for servers that a test starts and whose port must be chosen before."""

import itertools
import os
import socket

FIRST, SPAN = 10_000, 22_000
given = itertools.count(os.getpid() * 1009)


def free_port():
    """Returns a port without a listener. Each port is returned only once. All are below the ephemeral ports, so that no
    outgoing connection takes a port before the server starts."""
    for nth in itertools.islice(given, SPAN):
        port = FIRST + nth % SPAN
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("none of so many ports is free")
