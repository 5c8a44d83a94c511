"""The gateway process: model facts, router service, HTTP server, in that order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import uvicorn

from pagetrail.catalog import identity
from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.config import Config, served_name
from pagetrail.controlplane.log.endpoints import ClientKeys, ServerKeys
from pagetrail.engine.model import EngineOptions, model_facts
from pagetrail.sockets import listen

from .http import Served, Surface
from .service import RouterService

API_KEYS_MAX = 10_000
GRACE_S = 10


class GatewayReady(msgspec.Struct, frozen=True):
    """The one line, in JSON, that a gateway process prints when it serves."""

    event: str
    url: str
    cluster: str
    model: str


def run_gateway(
    config: Config,
    writer: str,
    publish: str,
    ready: Callable[[GatewayReady], None],
    *,
    keys: ClientKeys | None = None,
    worker_keys: ServerKeys | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises BadInputError for what cannot be served."""
    facts = model_facts(
        config.model.name,
        EngineOptions(
            pages=1, page_tokens=config.worker.page_tokens, context=config.worker.context
        ),
    )
    listener = listen(config.gateway.host, config.gateway.port)
    api_keys = read_api_keys(config.gateway.api_keys_file)
    row_bytes = sum(slab.layers * slab.row_bytes for slab in facts.layout.slabs)
    router = RouterService(
        config,
        identity.fingerprint(facts.compatibility),
        config.worker.chunk_tokens * row_bytes,
        writer,
        publish,
        keys=keys,
        worker_keys=worker_keys,
    )
    served = Served(served_name(config), facts.context, facts.tokenizer, int(time.time()))
    app = Surface(router, served, api_keys).app()
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    line = GatewayReady("ready", f"http://{address}:{port}", router.endpoint, served.name)
    asyncio.run(_serve(router, app, listener, lambda: ready(line)))


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process ends its router first, then the server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(
    router: RouterService, app: object, listener: socket.socket, ready: Callable[[], None]
) -> None:
    server = _Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            lifespan="off",
        )
    )
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await router.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    ready()
    waits = [
        asyncio.create_task(stopping.wait()),
        asyncio.create_task(router.failed.wait()),
        serving,
    ]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
    for wait in waits:
        wait.cancel()
    await router.close()
    if router.failure is not None:
        raise PagetrailError(f"the router stopped: {router.failure}") from router.failure


def read_api_keys(file: str | None) -> dict[str, str]:
    """The API keys in a file, one a line, each with the tenant that may follow it.

    Raises BadInputError for a file that cannot be read, that other users can read, without keys,
    or with a line of more than a key and a tenant.
    """
    if file is None:
        return {}
    path = Path(file)
    try:
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            raise BadInputError(f"{file} can be read by other users; run: chmod 600 {file}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadInputError(
            f"cannot read gateway.api_keys_file {file}: {error.strerror}"
        ) from error
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if len(words) > 2 or (words and words[0] in keys):
            raise BadInputError(
                f"line {number} of {file} holds {len(words)} words or a key that was given; "
                "expected a new key, and maybe its tenant's name"
            )
        if words:
            keys[words[0]] = words[1] if len(words) == 2 else ""
    if not 1 <= len(keys) <= API_KEYS_MAX:
        raise BadInputError(f"{file} holds {len(keys)} keys; expected 1 to {API_KEYS_MAX}")
    return keys
