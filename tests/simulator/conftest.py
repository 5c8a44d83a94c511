"""One flag for all scenarios: ``pytest tests/simulator --rewrite`` writes what they answer now."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="Write the scenarios' answers instead of comparing."
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether scenarios are to be written anew."""
    return bool(request.config.getoption("--rewrite", default=False))
