"""Which compiled form `native` and `auto` choose, and what they do without one."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")


from lab.errors import MissingError  # noqa: E402
from lab.rooms.semicrf.model import api, native  # noqa: E402
from lab.rooms.semicrf.model.native import cpu as native_cpu  # noqa: E402

pytestmark = pytest.mark.torch
NO_FORM = native.missing_reason("cpu")
compiled = pytest.mark.skipif(NO_FORM is not None, reason=(NO_FORM or "").splitlines()[0] if NO_FORM else "")


@compiled
def test_auto_on_a_cpu_is_the_compiled_form():
    assert api.resolve_backend("auto", torch.zeros(1, 2, 3)) == "native"


def absent():
    raise MissingError("no C++ compiler here")


def test_auto_is_torch_where_nothing_can_be_compiled_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(native_cpu, "library", absent)
    native.missing_reason.cache_clear()
    with caplog.at_level(logging.DEBUG, "lab.semicrf"):
        chosen = [api.resolve_backend("auto", torch.zeros(1, 2, 3)) for _ in range(3)]
    native.missing_reason.cache_clear()
    assert chosen == ["torch"] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "using torch, which is slower: no C++ compiler here" in caplog.text


def test_the_named_backend_is_refused_where_nothing_can_be_compiled(monkeypatch):
    monkeypatch.setattr(native_cpu, "library", absent)
    with pytest.raises(MissingError, match="no C\\+\\+ compiler"):
        api.log_partition(torch.zeros(1, 2, 3), torch.zeros(3, 3), torch.zeros(2, 3), backend="native")
