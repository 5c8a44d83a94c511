"""CURVE keys from the files that the configuration names, in the format of ZeroMQ's own tools.

A `.key_secret` file holds a process's pair, a `.key` file a public key. Importing this module
loads zmq.
"""

from __future__ import annotations

import stat
from pathlib import Path

from zmq.auth import create_certificates, load_certificate

from pagetrail.catalog.errors import BadInputError
from pagetrail.config import SocketsConfig
from pagetrail.controlplane.log.endpoints import ClientKeys, ServerKeys

CLIENT_KEYS_MAX = 10_000


def server_keys(sockets: SocketsConfig) -> ServerKeys | None:
    """The writer's keys and the clients it lets in; None when no keys are configured.

    Raises BadInputError for a setting without its partner, a file that is missing, is no key, or
    is a secret that other users can read.
    """
    if sockets.secret_key_file is None and sockets.client_keys_directory is None:
        return None
    if sockets.secret_key_file is None or sockets.client_keys_directory is None:
        raise BadInputError(
            "sockets.secret_key_file and sockets.client_keys_directory go together; set both, or "
            "neither for plain sockets on loopback"
        )
    public, secret = _secret_pair(Path(sockets.secret_key_file))
    return ServerKeys(
        public=public, secret=secret, clients=_public_keys(Path(sockets.client_keys_directory))
    )


def client_keys(sockets: SocketsConfig) -> ClientKeys | None:
    """The keys of a process that connects to the writer; None when none are configured.

    Raises BadInputError as `server_keys` does.
    """
    if sockets.secret_key_file is None and sockets.writer_public_key_file is None:
        return None
    if sockets.secret_key_file is None or sockets.writer_public_key_file is None:
        raise BadInputError(
            "sockets.secret_key_file and sockets.writer_public_key_file go together; set both, or "
            "neither for a writer on loopback"
        )
    public, secret = _secret_pair(Path(sockets.secret_key_file))
    server, _ = _certificate(Path(sockets.writer_public_key_file))
    return ClientKeys(public=public, secret=secret, server=server)


def gateway_server_keys(sockets: SocketsConfig) -> ServerKeys | None:
    """The gateway's keys and the workers it lets in; None when it lets in none by key.

    Raises BadInputError as `server_keys` does.
    """
    return None if sockets.client_keys_directory is None else server_keys(sockets)


def gateway_client_keys(sockets: SocketsConfig) -> ClientKeys | None:
    """The keys of a worker that connects to the gateway; None when none are configured.

    Raises BadInputError as `server_keys` does.
    """
    if sockets.gateway_public_key_file is None:
        return None
    if sockets.secret_key_file is None:
        raise BadInputError(
            "sockets.gateway_public_key_file needs sockets.secret_key_file; set both, or neither "
            "for a gateway on loopback"
        )
    public, secret = _secret_pair(Path(sockets.secret_key_file))
    server, _ = _certificate(Path(sockets.gateway_public_key_file))
    return ClientKeys(public=public, secret=secret, server=server)


def create_key_pair(directory: Path, name: str) -> tuple[Path, Path]:
    """Writes `name.key` and `name.key_secret` (readable by its owner only) into a directory.

    Raises BadInputError when the directory is missing or holds one of them already.
    """
    if not directory.is_dir():
        raise BadInputError(f"{directory} is no directory; expected one to put the keys into")
    public, secret = directory / f"{name}.key", directory / f"{name}.key_secret"
    for file in (public, secret):
        if file.exists():
            raise BadInputError(
                f"{file} exists; keys are never overwritten; choose another name or remove it"
            )
    secret.touch(mode=0o600)  # before the key is in it, so that it is never readable by others
    create_certificates(str(directory), name)
    return public, secret


def _secret_pair(file: Path) -> tuple[str, str]:
    public, secret = _certificate(file)
    if secret is None:
        raise BadInputError(
            f"{file} holds no secret key; expected a `.key_secret` file, such as "
            "`pagetrail keys` writes"
        )
    if stat.S_IMODE(file.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInputError(f"{file} can be read by other users; run chmod 600 on it")
    return public, secret


def _public_keys(directory: Path) -> tuple[str, ...]:
    files = sorted(directory.glob("*.key"))
    if not files or len(files) > CLIENT_KEYS_MAX:
        raise BadInputError(
            f"{directory} holds {len(files)} `.key` files; expected the public keys of 1 to "
            f"{CLIENT_KEYS_MAX} clients; correct sockets.client_keys_directory"
        )
    return tuple(_certificate(file)[0] for file in files)


def _certificate(file: Path) -> tuple[str, str | None]:
    try:
        public, secret = load_certificate(file)
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"cannot read a CURVE key from {file}: {error}; expected a file such as "
            "`pagetrail keys` writes"
        ) from error
    return public.decode("ascii"), None if secret is None else secret.decode("ascii")
