"""CURVE on ZeroMQ sockets: encryption, and only known clients let in."""

from __future__ import annotations

from collections.abc import Sequence

import zmq
from zmq.auth.thread import ThreadAuthenticator

from pagetrail.controlplane.log.endpoints import ClientKeys, ServerKeys


class _KnownClients:
    """Tells the authenticator which public keys may connect."""

    def __init__(self, public_keys: Sequence[str]) -> None:
        self._known = frozenset(key.encode("ascii") for key in public_keys)

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self._known


def secure_server(
    context: zmq.Context[zmq.Socket[bytes]],
    sockets: Sequence[zmq.Socket[bytes]],
    keys: ServerKeys,
) -> ThreadAuthenticator:
    """Make sockets speak CURVE, before they bind. The caller stops the authenticator."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", credentials_provider=_KnownClients(keys.clients))
    for socket in sockets:
        socket.curve_server = True
        socket.curve_publickey = keys.public.encode("ascii")
        socket.curve_secretkey = keys.secret.encode("ascii")
    return authenticator


def secure_client(socket: zmq.Socket[bytes], keys: ClientKeys) -> None:
    """Make a socket speak CURVE, before it connects."""
    socket.curve_publickey = keys.public.encode("ascii")
    socket.curve_secretkey = keys.secret.encode("ascii")
    socket.curve_serverkey = keys.server.encode("ascii")
