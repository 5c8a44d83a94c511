"""Keys named in the configuration: read whole, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagetrail.catalog.errors import BadInputError
from pagetrail.config import SocketsConfig
from pagetrail.controlplane.log.stream import LogStream
from pagetrail.controlplane.log.writer import EmbeddedWriter
from pagetrail.curve_keys import client_keys, create_key_pair, server_keys


@pytest.fixture
def sockets(tmp_path: Path) -> SocketsConfig:
    clients = tmp_path / "clients"
    clients.mkdir()
    for name in ("worker-1", "worker-0"):
        create_key_pair(clients, name)
    _, secret = create_key_pair(tmp_path, "writer")
    return SocketsConfig(secret_key_file=str(secret), client_keys_directory=str(clients))


def test_without_keys_there_are_none() -> None:
    assert server_keys(SocketsConfig()) is None


def test_the_writer_lets_in_every_client_of_the_directory(sockets: SocketsConfig) -> None:
    keys = server_keys(sockets)
    assert keys is not None
    assert len(set(keys.clients)) == 2
    assert {len(key) for key in (keys.public, keys.secret, *keys.clients)} == {40}


def test_a_client_holds_its_own_pair_and_the_writer_s_public_key(
    sockets: SocketsConfig, tmp_path: Path
) -> None:
    mine = SocketsConfig(
        secret_key_file=str(tmp_path / "clients/worker-0.key_secret"),
        writer_public_key_file=str(tmp_path / "writer.key"),
    )
    own, writer = client_keys(mine), server_keys(sockets)
    assert own is not None
    assert writer is not None
    assert own.server == writer.public
    assert own.public in writer.clients
    assert client_keys(SocketsConfig()) is None
    with pytest.raises(BadInputError, match="go together"):
        client_keys(SocketsConfig(secret_key_file=mine.secret_key_file))


def test_a_writer_with_keys_serves_its_clients_and_no_one_else(
    sockets: SocketsConfig, tmp_path: Path
) -> None:
    mine = SocketsConfig(
        secret_key_file=str(tmp_path / "clients/worker-0.key_secret"),
        writer_public_key_file=str(tmp_path / "writer.key"),
    )
    with EmbeddedWriter(tmp_path / "run", keys=server_keys(sockets)) as writer:
        places = (writer.endpoint, writer.publish_endpoint)
        with LogStream(*places, keys=client_keys(mine)) as known:
            assert known.poll(30)
        with LogStream(*places) as stranger:
            assert stranger.poll(1) == []


def test_one_setting_without_the_other_is_refused(sockets: SocketsConfig) -> None:
    with pytest.raises(BadInputError, match="go together"):
        server_keys(SocketsConfig(secret_key_file=sockets.secret_key_file))


def test_a_secret_that_others_can_read_is_refused(sockets: SocketsConfig) -> None:
    Path(str(sockets.secret_key_file)).chmod(0o640)
    with pytest.raises(BadInputError, match="can be read by other users"):
        server_keys(sockets)


def test_a_public_key_in_place_of_the_secret_is_refused(sockets: SocketsConfig) -> None:
    public = str(sockets.secret_key_file).removesuffix("_secret")
    with pytest.raises(BadInputError, match="holds no secret key"):
        server_keys(
            SocketsConfig(
                secret_key_file=public, client_keys_directory=sockets.client_keys_directory
            )
        )


def test_a_directory_without_client_keys_is_refused(sockets: SocketsConfig, tmp_path: Path) -> None:
    (tmp_path / "nobody").mkdir()
    with pytest.raises(BadInputError, match=r"holds 0 `\.key` files"):
        server_keys(
            SocketsConfig(
                secret_key_file=sockets.secret_key_file,
                client_keys_directory=str(tmp_path / "nobody"),
            )
        )


def test_a_file_that_is_no_key_is_refused(sockets: SocketsConfig, tmp_path: Path) -> None:
    noise = tmp_path / "noise.key_secret"
    noise.write_text("not a key\n", encoding="utf-8")
    with pytest.raises(BadInputError, match="cannot read a CURVE key"):
        server_keys(
            SocketsConfig(
                secret_key_file=str(noise), client_keys_directory=sockets.client_keys_directory
            )
        )
