"""Small random models of every family, saved once a session as their own library saves them."""

from __future__ import annotations

import os

# Before torch is loaded: with the default policy idle OpenMP threads spin and starve the others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tiny_models import FAMILIES, save_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``tiny_model(family)`` is the directory of a random model of that family."""

    @cache
    def make(family: str) -> Path:
        directory = tmp_path_factory.mktemp(family)
        save_tiny(family, directory)
        return directory

    return make


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    """Each family in turn."""
    return str(request.param)
