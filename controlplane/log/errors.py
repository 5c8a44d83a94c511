"""Errors of the log that callers tell apart; the rest are the catalog's."""

from __future__ import annotations

from pagetrail.catalog.errors import PagetrailError


class SpoolFullError(PagetrailError):
    """The spool has no room for this append; nothing was changed."""


class HeadroomError(PagetrailError):
    """The spool cannot promise the room asked for; nothing was reserved."""


class FencedError(PagetrailError):
    """A newer writer took the log over; this one may acknowledge nothing more."""


class WriterStoppedError(PagetrailError):
    """The writer hit an error after which it must not go on; start a new one."""


class LogBehindError(PagetrailError):
    """The log ends before, or differs at, a position that was acknowledged: data was lost."""


class OtherLogError(PagetrailError):
    """A client's spool belongs to another log than the one it connected to."""


class ClientRefusedError(PagetrailError):
    """The writer will never take what this client sends; its message says why."""


class LogTimeoutError(PagetrailError):
    """An answer did not come in the time allowed; nothing is known about the outcome."""


class ClientStoppedError(PagetrailError):
    """The client hit an error after which it must not go on; start it again."""
