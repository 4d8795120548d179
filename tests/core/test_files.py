"""A file is there whole or not at all; a lock is held by one process, which can be named."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path

import pytest

from lab.core.files import exclusive, holder_pid, make_folder, replacing, sha256_of, write_atomic
from lab.errors import BusyError, StorageError


def test_text_and_bytes_are_written_as_they_are(tmp_path):
    write_atomic(tmp_path / "a", "µ\n")
    write_atomic(tmp_path / "b", b"\xff\x00")
    assert (tmp_path / "a").read_bytes() == "µ\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\xff\x00"


def test_the_folders_of_a_file_are_made(tmp_path):
    write_atomic(tmp_path / "a" / "b" / "c", "x")
    assert (tmp_path / "a" / "b" / "c").read_text() == "x"


def test_content_reaches_the_disk_before_its_name_and_the_name_before_the_return(tmp_path, synced):
    write_atomic(tmp_path / "f", "x")
    (sync, temporary), rename, folder = synced
    assert sync == "sync" and Path(temporary).parent == tmp_path and Path(temporary).name != "f"
    assert (rename, folder) == (("rename", str(tmp_path / "f")), ("sync", str(tmp_path)))


def test_a_file_in_the_making_lies_hidden_beside_its_place(tmp_path):
    with replacing(tmp_path / "f.json") as file:
        (part,) = tmp_path.iterdir()
        assert part.name.startswith(".f.json.") and part.name.endswith(".tmp")
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["f.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    (tmp_path / "f").write_text("old")
    with pytest.raises(error), replacing(tmp_path / "f") as file:
        file.write(b"new")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_text() == "old"


def test_an_error_of_the_block_survives_a_temporary_file_that_is_gone(tmp_path):
    with pytest.raises(ValueError, match="mine"), replacing(tmp_path / "f"):
        for path in tmp_path.iterdir():
            path.unlink()
        raise ValueError("mine")


def test_a_full_disk_is_named_with_the_file(tmp_path):
    with pytest.raises(StorageError, match="no space left") as caught, replacing(tmp_path / "f"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.location == str(tmp_path / "f")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(StorageError) as caught:
        make_folder(tmp_path / "f")
    assert caught.value.location == str(tmp_path / "f")


@pytest.mark.parametrize("size", [0, 3, (1 << 20) - 1, 1 << 20, (2 << 20) + 5])
def test_the_digest_is_of_the_whole_file(tmp_path, size):
    data = bytes(range(251)) * (size // 251 + 1)
    (tmp_path / "f").write_bytes(data[:size])
    assert sha256_of(tmp_path / "f") == hashlib.sha256(data[:size]).hexdigest()


def held(path: Path):
    return exclusive(path, busy="in use", fix="wait")


def test_the_holder_of_a_lock_is_named_while_it_holds_it(tmp_path):
    lock = tmp_path / "lock"
    assert holder_pid(lock) is None
    with held(lock):
        assert holder_pid(lock) == os.getpid()
        assert lock.read_text() == str(os.getpid())
    assert holder_pid(lock) is None


def test_a_held_lock_says_where_and_what_to_do(tmp_path):
    with held(tmp_path / "lock"), pytest.raises(BusyError) as caught, held(tmp_path / "lock"):
        pass
    assert (caught.value.problem, caught.value.location, caught.value.fix) == (
        "in use",
        str(tmp_path / "lock"),
        "wait",
    )


def test_a_failing_block_frees_its_lock(tmp_path):
    with pytest.raises(KeyError), held(tmp_path / "lock"):
        raise KeyError
    with held(tmp_path / "lock"):
        pass


def test_a_longer_number_of_an_earlier_holder_leaves_no_digits(tmp_path):
    (tmp_path / "lock").write_text("9" * 30)
    with held(tmp_path / "lock"):
        assert holder_pid(tmp_path / "lock") == os.getpid()


@pytest.mark.parametrize("content", ["", "not a number"])
def test_a_lock_held_by_something_else_has_no_known_holder(tmp_path, content):
    (tmp_path / "lock").write_text(content)
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert holder_pid(tmp_path / "lock") is None


def test_asking_for_the_holder_neither_makes_nor_keeps_the_lock(tmp_path):
    assert holder_pid(tmp_path / "lock") is None and not (tmp_path / "lock").exists()
    (tmp_path / "lock").write_text("")
    before = os.listdir("/proc/self/fd")
    assert holder_pid(tmp_path / "lock") is None
    assert os.listdir("/proc/self/fd") == before
    with held(tmp_path / "lock"):
        pass


def test_a_lock_that_may_only_be_read_has_a_holder_too(tmp_path, monkeypatch):
    """Of another user's run: NFS, too, gives a shared lock on what is open for reading."""
    flags, open_file = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *args: (flags.append(args[0]), open_file(path, *args))[1])
    with held(tmp_path / "lock"):
        flags.clear()
        assert holder_pid(tmp_path / "lock") == os.getpid()
    assert flags and flags[0] & os.O_ACCMODE == os.O_RDONLY


def test_a_lock_in_a_folder_that_is_not_there_is_an_error_with_its_path(tmp_path):
    with pytest.raises(StorageError) as caught, held(tmp_path / "none" / "lock"):
        pass
    assert caught.value.location == str(tmp_path / "none" / "lock")


def test_a_lock_may_be_shared_with_the_group_as_the_umask_says(tmp_path):
    old = os.umask(0o002)
    try:
        with held(tmp_path / "lock"):
            pass
    finally:
        os.umask(old)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o664
