"""Settings of all tests: no property fails because the machine is slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("pagetrail", deadline=None)
settings.load_profile("pagetrail")
