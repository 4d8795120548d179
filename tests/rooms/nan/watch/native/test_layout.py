"""What the C reads in the memory of objects stands where it was found."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from lab.rooms.nan.watch.native import layout  # noqa: E402
from lab.rooms.nan.watch.native.passing import looks  # noqa: E402


@pytest.fixture
def searched_anew():
    layout.version_at.cache_clear()
    layout.body_at.cache_clear()
    yield
    layout.version_at.cache_clear()
    layout.body_at.cache_clear()


def test_a_word_is_found_once_or_not_at_all():
    class Held:
        __slots__ = ("one", "other")

    held, word = Held(), object()
    held.one = word
    place = layout.place_of(id(word), held)
    assert place > 0 and place % layout.WORD == 0
    held.other = word
    assert layout.place_of(id(word), held) == -1
    assert layout.place_of(0x123456789, held) == -1


@pytest.mark.skipif(not hasattr(torch, "_neg_view"), reason="torch 1.12")
def test_bits_that_tell_signs_apart_by_chance_are_not_taken(monkeypatch):
    expected, both, asked = layout.negative_at(), layout._of_both_signs, []

    def first_too_few():
        usual, negative = both()
        asked.append(usual)
        return (usual[:1], negative[-1:]) if len(asked) == 1 else (usual, negative)

    layout.negative_at.cache_clear()
    monkeypatch.setattr(layout, "_of_both_signs", first_too_few)
    assert layout.negative_at() == expected and len(asked) > 1


@pytest.mark.skipif(looks() is None or layout.version_at() == (0, 0), reason="not found in this torch")
def test_versions_are_those_that_torch_gives():
    look, base = looks(), torch.zeros(4, 4)
    for times in range(40):
        alike = [base, base[0], base.t(), base.detach(), base.data, torch.nn.Parameter(base.clone())]
        versions = {}
        assert look.note_versions(alike, versions)
        assert versions == {id(one): one._version for one in alike} and versions[id(base)] == times
        assert look.unwritten(alike, versions)
        base.add_(1)
        assert not look.unwritten([base], versions) and not look.unwritten([alike[1]], versions)
    with torch.inference_mode():
        uncounted = torch.zeros(2)
    assert not look.note_versions([uncounted], {})  # which torch refuses to say


def test_no_place_is_taken_that_is_not_the_only_one(monkeypatch, searched_anew):
    monkeypatch.setattr(layout, "WORDS", range(0))
    assert layout.version_at() == (0, 0)
    layout.version_at.cache_clear()
    monkeypatch.setattr(layout, "WORDS", range(2, 8))
    monkeypatch.setattr(layout, "WRITES", ())  # everything fits
    assert layout.version_at() == (0, 0)
    monkeypatch.setattr(layout, "_lying_differently", list)
    assert layout.body_at() == layout.NO_BODY


def test_without_a_look_at_this_process_nothing_is_found(monkeypatch, searched_anew):
    def refuses(*_):
        raise OSError

    monkeypatch.setattr(layout.os, "open", refuses)
    assert layout.version_at() == (0, 0) and layout.body_at() == layout.NO_BODY


def test_what_tells_tensors_apart_must_tell_every_type(monkeypatch, searched_anew):
    if layout.body_at() == layout.NO_BODY:
        pytest.skip("not found in this torch")
    layout.body_at.cache_clear()
    monkeypatch.setattr(layout, "OTHER_TYPES", (torch.float32,))  # which is no other
    assert layout.body_at() == layout.NO_BODY


def test_the_type_of_any_object_stands_at_one_place():
    import ctypes

    place = layout.type_at()
    of_torch = torch.ones(2), torch.nn.Linear(1, 1), torch.float16
    for one in (1, "a", b"", (), nothing, type, None, 1.5, {1}, NotImplemented, *of_torch):
        assert ctypes.c_void_p.from_address(id(one) + place).value == id(type(one))


def nothing():
    return None
