"""Endpoints and keys: which addresses may be plain, and how the others are encrypted."""

from __future__ import annotations

import ipaddress

import msgspec

from pagetrail.catalog.errors import BadInputError


class ServerKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CURVE keys of the writer, and the public keys of the clients it lets in (Z85 text)."""

    public: str
    secret: str
    clients: tuple[str, ...]


class ClientKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CURVE keys of a client, and the public key of its writer (Z85 text, 40 characters)."""

    public: str
    secret: str
    server: str


def is_local(endpoint: str) -> bool:
    """Whether traffic on a ZeroMQ endpoint cannot leave this machine.

    ``BadInputError`` for an endpoint that is neither tcp nor ipc.
    """
    scheme, separator, rest = endpoint.partition("://")
    if not separator or scheme not in ("tcp", "ipc") or not rest:
        raise BadInputError(
            f"endpoint {endpoint!r} cannot be used; expected tcp://HOST:PORT or ipc://PATH"
        )
    if scheme != "tcp":
        return True
    host = rest.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_endpoint(endpoint: str, *, keys: bool) -> None:
    """``BadInputError`` when the endpoint needs keys and there are none."""
    if not is_local(endpoint) and not keys:
        raise BadInputError(
            f"{endpoint} can be reached from other machines and would be unencrypted; give CURVE "
            "keys, or use a loopback address such as tcp://127.0.0.1:PORT"
        )
