"""Listening sockets of the HTTP side."""

from __future__ import annotations

import socket

from pagetrail.catalog.errors import BadInputError


def listen(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes any free one. Raises BadInputError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BadInputError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with gateway.port "
            "(0 takes any free one)"
        ) from error
    return listener
