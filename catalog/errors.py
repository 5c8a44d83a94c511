"""The error tree of pagetrail. Every message says what was wrong, what was expected, what to do."""


class PagetrailError(Exception):
    """Base of every error that pagetrail raises on purpose."""


class BadInputError(PagetrailError, ValueError):
    """What the caller handed in cannot be used; nothing was changed."""


class CorruptionError(PagetrailError):
    """Stored bytes are not what was written; nothing was repaired or cut."""


class UnknownKindError(PagetrailError):
    """A fact of a kind, or of a schema version, that this build does not know."""


class InvariantError(PagetrailError):
    """The program's own books disagree. The worker must stop; the log survives."""
