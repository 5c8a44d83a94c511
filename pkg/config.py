"""The configuration of every process: one schema and its defaults.

The structs below are the only list of settings; the loader (`config_load`), the command line and
docs/config.md all read it. A field's `Meta` carries its bounds and its description. Defaults are
safe: everything listens on loopback, and `config_checks` refuses another address without keys.
This module reads no file and no environment.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pagetrail.controlplane.log.limits import MESSAGE_BYTES_MAX, LogLimits, check_limits
from pagetrail.controlplane.policy.recorder import FULL, RecordMode

ENDPOINT_PATTERN = r"^(tcp://[^ ]+:[0-9]{1,5}|ipc://[^ ]+)$"
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
QUOTAS_PATTERN = rf"^{NAME_PATTERN[1:-1]}=[0-9]{{1,10}}( *, *{NAME_PATTERN[1:-1]}=[0-9]{{1,10}})*$"
EVALUATOR_PATTERN = r"^[a-z0-9-]+/[a-z0-9-]+@[0-9]+$"

_LIMITS = LogLimits()  # where the log has a default, it is the configuration's too

FilePath = Annotated[str, Meta(min_length=1)]
Quotas = Annotated[str, Meta(pattern=QUOTAS_PATTERN)]
Endpoint = Annotated[str, Meta(pattern=ENDPOINT_PATTERN)]
Evaluator = Annotated[str, Meta(pattern=EVALUATOR_PATTERN)]


class WriterClock(StrEnum):
    """Where the writer takes `t_us` from."""

    WALL = "wall"
    LOGICAL = "logical"


class Alternatives(StrEnum):
    """How much of a decision's answer is stored."""

    REFERENCE = "reference"
    FULL = "full"


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run keeps its files."""

    directory: Annotated[
        FilePath,
        Meta(description="Directory of the run: log segments, spools, replicas."),
    ] = "pagetrail-run"


class WriterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The one process that appends to the log."""

    bind: Annotated[Endpoint, Meta(description="Endpoint for appends; port 0 takes any.")] = (
        "tcp://127.0.0.1:7301"
    )
    publish: Annotated[
        Endpoint, Meta(description="Endpoint of the live stream; port 0 takes any.")
    ] = "tcp://127.0.0.1:7302"
    bulk: Annotated[
        Endpoint | None,
        Meta(
            description="Endpoint for ranges of the log and sealed files, which readers learn from "
            "the writer; absent: a free port beside `bind`."
        ),
    ] = None
    clock: Annotated[
        WriterClock,
        Meta(description="Clock of `t_us`: the wall clock, or a logical one that only counts."),
    ] = WriterClock.WALL
    segment_bytes: Annotated[
        int,
        Meta(ge=1 << 20, le=1 << 32, description="Size at which the active segment is closed."),
    ] = _LIMITS.segment_bytes
    unsealed_segments: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 20,
            description="Closed segments that stay as they are; the writer has older ones sealed, "
            "by a process of its own. 0: nothing is sealed but by `facts seal`.",
        ),
    ] = _LIMITS.unsealed_segments
    queue_bytes: Annotated[
        int,
        Meta(
            ge=MESSAGE_BYTES_MAX,
            le=1 << 34,
            description="Appends held beyond the commit under way; above it the answer is busy.",
        ),
    ] = _LIMITS.queue_bytes


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a process appends its facts."""

    window_transactions: Annotated[
        int,
        Meta(ge=1, le=1 << 20, description="Transactions sent and not yet acknowledged, at most."),
    ] = _LIMITS.window_transactions
    spool_bytes: Annotated[
        int,
        Meta(
            ge=4 * _LIMITS.spool_file_bytes,
            le=1 << 40,
            description="Facts kept on disk while the writer is away; beyond it requests get 503.",
        ),
    ] = _LIMITS.spool_bytes


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: its pages and its step."""

    id: Annotated[
        str,
        Meta(pattern=NAME_PATTERN, description="Name of the worker, unique in its cluster."),
    ] = "worker-0"
    page_tokens: Annotated[Literal[16, 32], Meta(description="Token rows of a device page.")] = 16
    pages: Annotated[
        int, Meta(ge=1, le=1 << 24, description="Pages of the pool, per token group.")
    ] = 4_096
    chunk_tokens: Annotated[
        int,
        Meta(ge=128, le=512, description="Tokens of a durable chunk; changing it changes chunks."),
    ] = 256
    context: Annotated[
        int, Meta(ge=2, le=1 << 20, description="Longest sequence in tokens, prompt and answer.")
    ] = 8_192
    lanes: Annotated[
        int, Meta(ge=1, le=1_024, description="Streams that decode in one step, at most.")
    ] = 16
    prefill_tile: Annotated[
        int, Meta(ge=16, le=8_192, description="Rows of one prompt in one step, at most.")
    ] = 512
    step_rows: Annotated[
        int, Meta(ge=16, le=16_384, description="Rows of one step in all, at most.")
    ] = 512
    kept_pages: Annotated[
        int,
        Meta(ge=0, le=1 << 24, description="Pages that finished prompts may keep; 0: all pages."),
    ] = 0
    threads: Annotated[int, Meta(ge=1, le=256, description="Threads of the model's products.")] = 1
    checkpoint_tiers: Annotated[
        Literal["none", "ssd", "object", "ssd,object"],
        Meta(description="Tiers that finished chunks are written to."),
    ] = "ssd,object"
    ram_bytes: Annotated[
        int, Meta(ge=0, le=1 << 44, description="Host memory for chunks; 0 keeps none there.")
    ] = 256 << 20
    reserve_output: Annotated[
        bool,
        Meta(
            description="Whether a request starts only when its whole answer has pages. If not, "
            "more run at once, and one gives way when another needs its pages."
        ),
    ] = True
    swap_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 44,
            description="Host memory for requests that gave way; 0 computes them again.",
        ),
    ] = 256 << 20
    poison: Annotated[
        bool,
        Meta(description="Fill pages that come free with NaN, so that a stale read shows (slow)."),
    ] = False
    ssd_bytes: Annotated[
        int, Meta(ge=0, le=1 << 50, description="Room of the local chunk tier.")
    ] = 8 << 30
    disk_reserve_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="Disk space that chunks leave free, for the log and the spools.",
        ),
    ] = 256 << 20
    staging_bytes: Annotated[
        int,
        Meta(ge=1 << 16, le=1 << 40, description="Captured chunks waiting to be stored, at most."),
    ] = 256 << 20
    restore_window: Annotated[
        int, Meta(ge=1, le=256, description="Chunks of one restore read at once.")
    ] = 4
    check_lookups: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 30,
            description="One look-up in so many is checked against the rules; 0: none.",
        ),
    ] = 0
    measure_costs: Annotated[
        bool, Meta(description="Whether measured times replace the configured costs.")
    ] = True
    clock: Annotated[
        Literal["machine", "logical"],
        Meta(description="`logical`: recorded times count events; for runs that are compared."),
    ] = "machine"


class TenantsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the pages that tenants can count on; a tenant is named beside its API key."""

    quotas: Annotated[
        Quotas | None,
        Meta(
            description="Pages of each tenant, such as `acme=2000, beta=500`; all others share "
            "the rest. Absent: all share all.",
        ),
    ] = None


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model that the cluster serves."""

    name: Annotated[
        str,
        Meta(min_length=1, description="Directory, GGUF file, or the name of an installed model."),
    ] = "smollm2-135m-instruct"
    served_as: Annotated[
        str | None, Meta(description="Name that clients ask for; absent: the last part of `name`.")
    ] = None


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP side, and where workers find it."""

    host: Annotated[
        str, Meta(min_length=1, description="Address to listen on; beyond loopback needs keys.")
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port; 0 takes any free one.")] = 8_000
    cluster: Annotated[
        Endpoint, Meta(description="Endpoint at which workers connect; port 0 takes any.")
    ] = "tcp://127.0.0.1:7303"
    heartbeat_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="A worker reports at least this often.")
    ] = 200
    expiry_ms: Annotated[
        int, Meta(ge=50, le=600_000, description="A worker that is silent so long is given up.")
    ] = 3_000
    offer_timeout_ms: Annotated[
        int, Meta(ge=50, le=600_000, description="An offer unanswered so long goes elsewhere.")
    ] = 15_000
    requests_max: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Open requests; beyond it clients get 503.")
    ] = 1_024
    api_keys_file: Annotated[
        FilePath | None,
        Meta(
            description="File of API keys, one a line, a tenant's name after the key if it is "
            "one's; without the file no key is asked for."
        ),
    ] = None


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluator that makes each kind of decision (docs/decisions.md lists them)."""

    route: Annotated[Evaluator, Meta(description="Which worker serves a request.")] = (
        "routing/min-ttft@1"
    )
    admit: Annotated[
        Evaluator, Meta(description="Whether a request starts, waits or is refused.")
    ] = "admission/reserve@2"
    evict: Annotated[Evaluator, Meta(description="Which kept pages make room.")] = (
        "residency/value-density@1"
    )
    restore: Annotated[Evaluator, Meta(description="Where a known prefix comes from.")] = (
        "restore/min-completion@1"
    )
    checkpoint: Annotated[Evaluator, Meta(description="Whether a finished range is stored.")] = (
        "checkpoint/expected-value@1"
    )
    keep: Annotated[
        Evaluator, Meta(description="Whether a finished prompt stays on the device.")
    ] = "keep/within-limits@2"
    preempt: Annotated[Evaluator, Meta(description="Which running streams make room.")] = (
        "preempt/min-cost@2"
    )
    resume: Annotated[
        Evaluator, Meta(description="Where a stream that gave way takes its rows from.")
    ] = "resume/min-completion@1"


class RecordConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored beside every decision's choice, reasons and digests."""

    alternatives: Annotated[
        Alternatives,
        Meta(description="`reference`: the digest of all alternatives; `full`: each of them."),
    ] = Alternatives.REFERENCE
    sample_ppm: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Share of decisions stored in full all the same, parts per million.",
        ),
    ] = 0
    tokens: Annotated[
        bool, Meta(description="Whether token ids of prompts are recorded, not only digests.")
    ] = False


class SocketsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Keys and limits of the ZeroMQ sockets between processes."""

    secret_key_file: Annotated[
        FilePath | None,
        Meta(description="This process's CURVE key pair (a `.key_secret` file)."),
    ] = None
    writer_public_key_file: Annotated[
        FilePath | None,
        Meta(description="The writer's public CURVE key (a `.key` file), for its clients."),
    ] = None
    gateway_public_key_file: Annotated[
        FilePath | None,
        Meta(description="The gateway's public CURVE key (a `.key` file), for its workers."),
    ] = None
    client_keys_directory: Annotated[
        FilePath | None,
        Meta(
            description="Public keys (`.key` files) of the clients that the writer, or the gateway "
            "for its workers, lets in."
        ),
    ] = None
    live_frames: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 20,
            description="Frames queued for a live subscriber; beyond it the subscriber refetches.",
        ),
    ] = _LIMITS.live_frames
    message_bytes: Annotated[
        int,
        Meta(
            ge=1 << 12,
            le=MESSAGE_BYTES_MAX,
            description="Size up to which one message to the writer is filled.",
        ),
    ] = _LIMITS.message_bytes
    heartbeat_ms: Annotated[
        int,
        Meta(ge=10, le=60_000, description="The writer states its head at least this often."),
    ] = _LIMITS.heartbeat_ns // 1_000_000


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All sections. A section is a table of the TOML file; a field is a key in it."""

    run: RunConfig
    model: ModelConfig
    writer: WriterConfig
    client: ClientConfig
    worker: WorkerConfig
    tenants: TenantsConfig
    gateway: GatewayConfig
    policy: PolicyConfig
    record: RecordConfig
    sockets: SocketsConfig


def served_name(config: Config) -> str:
    """The name of the model that clients ask for."""
    return config.model.served_as or Path(config.model.name).name


def log_limits(config: Config) -> LogLimits:
    """The bounds of the log, its writer and its clients under this configuration."""
    return check_limits(
        LogLimits(
            segment_bytes=config.writer.segment_bytes,
            unsealed_segments=config.writer.unsealed_segments,
            queue_bytes=config.writer.queue_bytes,
            message_bytes=config.sockets.message_bytes,
            window_transactions=config.client.window_transactions,
            spool_bytes=config.client.spool_bytes,
            live_frames=config.sockets.live_frames,
            heartbeat_ns=config.sockets.heartbeat_ms * 1_000_000,
        )
    )


def record_mode(record: RecordConfig) -> RecordMode:
    """How many decisions keep all their alternatives."""
    return FULL if record.alternatives is Alternatives.FULL else RecordMode(record.sample_ppm)
