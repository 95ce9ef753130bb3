"""What doctests may use without importing it."""

from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace["torch"] = torch
    doctest_namespace["nn"] = torch.nn
