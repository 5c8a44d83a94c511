"""The fact log and its one writer: frames, segments, spool, client, stream (docs/log.md).

Names are resolved when they are used, so that reading a log needs no sockets and no Parquet.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagetrail.controlplane.log.client import Acked, Draft, FactClient, Headroom, Position
    from pagetrail.controlplane.log.endpoints import ClientKeys, ServerKeys
    from pagetrail.controlplane.log.errors import HeadroomError, LogBehindError, SpoolFullError
    from pagetrail.controlplane.log.export import ExportFormat, export_log
    from pagetrail.controlplane.log.frames import Frame, LogPosition
    from pagetrail.controlplane.log.limits import LogLimits
    from pagetrail.controlplane.log.reader import VerifyReport, read_log, verify_log
    from pagetrail.controlplane.log.sealing import (
        RetentionReport,
        SealReport,
        retain_log,
        seal_log,
    )
    from pagetrail.controlplane.log.stream import LogStream
    from pagetrail.controlplane.log.writer import EmbeddedWriter, start_writer_process

_HOMES = {
    "Acked": "client",
    "Draft": "client",
    "FactClient": "client",
    "Headroom": "client",
    "Position": "client",
    "ClientKeys": "endpoints",
    "ServerKeys": "endpoints",
    "HeadroomError": "errors",
    "LogBehindError": "errors",
    "SpoolFullError": "errors",
    "ExportFormat": "export",
    "export_log": "export",
    "RetentionReport": "sealing",
    "SealReport": "sealing",
    "retain_log": "sealing",
    "seal_log": "sealing",
    "Frame": "frames",
    "LogPosition": "frames",
    "LogLimits": "limits",
    "VerifyReport": "reader",
    "read_log": "reader",
    "verify_log": "reader",
    "LogStream": "stream",
    "EmbeddedWriter": "writer",
    "start_writer_process": "writer",
}

__all__ = [
    "Acked",
    "ClientKeys",
    "Draft",
    "EmbeddedWriter",
    "ExportFormat",
    "FactClient",
    "Frame",
    "Headroom",
    "HeadroomError",
    "LogBehindError",
    "LogLimits",
    "LogPosition",
    "LogStream",
    "Position",
    "RetentionReport",
    "SealReport",
    "ServerKeys",
    "SpoolFullError",
    "VerifyReport",
    "export_log",
    "read_log",
    "retain_log",
    "seal_log",
    "start_writer_process",
    "verify_log",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
