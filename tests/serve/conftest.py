"""A tiny random model, and clusters of real processes that serve it."""

from __future__ import annotations

import os

# Before torch is loaded: with the default policy idle OpenMP threads spin and starve the others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import TINY_SETTINGS, Oracle
from tiny_models import save_tiny

from pagetrail.up import ClusterOptions, LocalCluster


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a random Llama with a byte-level tokenizer."""
    directory = tmp_path_factory.mktemp("tiny-llama")
    save_tiny("llama", directory)
    return directory


@pytest.fixture(scope="session")
def oracle(tiny: Path) -> Oracle:
    """The same model as transformers runs it."""
    return Oracle.open(tiny)


@pytest.fixture(scope="session")
def cluster(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Writer, gateway and two workers over a small pool; shared, so tests leave it as it was."""
    directory = tmp_path_factory.mktemp("cluster")
    options = ClusterOptions(directory, 2, (f"model.name={tiny}", *TINY_SETTINGS))
    with LocalCluster(options) as running:
        yield running
