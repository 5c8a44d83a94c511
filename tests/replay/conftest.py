"""Runs that several tests of replay read; every one is served once a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from replay_runs import Served, serve_generated

TRACE_FILE = "mooncake_conversation_trace.jsonl"


@pytest.fixture(scope="session")
def public_trace() -> Path:
    """The public conversation trace, from PAGETRAIL_TRACES or beside the project."""
    named = os.environ.get("PAGETRAIL_TRACES")
    beside = Path(__file__).parents[3] / "shared" / "traces"
    path = (Path(named) if named else beside) / TRACE_FILE
    if not path.is_file():
        pytest.skip(f"{path} is not there; set PAGETRAIL_TRACES to the directory of public traces")
    return path


@pytest.fixture(scope="session")
def four_workers(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Four workers with tiers, small pools, decisions recorded in full, several keyframes."""
    return serve_generated(
        tmp_path_factory.mktemp("four"), requests=120, workers=4, pages=90, keyframe_every=400
    )


@pytest.fixture(scope="session")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """One worker without tiers under leaf-first LRU."""
    return serve_generated(
        tmp_path_factory.mktemp("one"),
        requests=400,
        workers=1,
        pages=260,
        tiers="none",
        evaluators=("residency/leaf-lru@1",),
    )
