"""Tests of permissions for a root user, as in many CI containers, whom no permission stops."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_VERSION = 0x20080522  # of capget(2)'s structures: three words a half of (effective, permitted, inheritable)
_BYPASS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Within this, permissions hold for this thread and those it starts, root's too. It stays the same user, because
    another one might not reach the interpreter's own files or pytest's folders."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "capset"):
        pytest.skip("root cannot be bound by permissions on this system")
    header, words = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()

    def call(function: str) -> None:
        if getattr(libc, function)(header, words):
            raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")

    call("capget")
    before = words[0]
    words[0] = before & ~_BYPASS
    call("capset")
    try:
        yield
    finally:
        words[0] = before
        call("capset")
