"""The CUDA kernels' library: what it needs, that it is compiled once, and whose words an error shows."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


from torch.utils import cpp_extension  # noqa: E402

from lab.errors import GpuError, MissingError  # noqa: E402
from lab.rooms.semicrf.model.native import cuda as native_cuda  # noqa: E402
from lab.rooms.semicrf.model.native import cuda_plan  # noqa: E402

pytestmark = pytest.mark.torch
SIZES = native_cuda.SIZES


@pytest.fixture
def toolkit(monkeypatch, tmp_path):
    """A GPU, nvcc, ninja and a C++ compiler, as far as `available` looks."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(cpp_extension, "is_ninja_available", lambda: True)
    monkeypatch.setenv("CXX", "true")  # any program that answers


def test_with_all_that_torchs_loader_needs_nothing_is_missing(toolkit):
    assert native_cuda.available() is None


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("CUDA_HOME", None, "no nvcc here"),
        ("CUDA_HOME", "/a/runtime/alone", "no nvcc here"),
        ("is_ninja_available", lambda: False, "pip install ninja"),
    ],
)
def test_what_is_missing_is_named(toolkit, monkeypatch, name, value, words):
    monkeypatch.setattr(cpp_extension, name, value)
    assert words in native_cuda.available()


@pytest.mark.parametrize("capability, words", [((6, 1), "makes no code for sm_61"), ((9, 0), None)])
def test_a_gpu_that_nvcc_does_not_know_is_named(toolkit, monkeypatch, tmp_path, capability, words):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho sm_75; echo sm_90\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    reason = native_cuda.available()
    assert words in reason if words else reason is None


def test_a_cache_that_cannot_be_written_is_named(toolkit, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot be kept" in native_cuda.available()


def test_a_missing_cpp_compiler_is_named(toolkit, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert native_cuda.available() == "no C++ compiler here"


@pytest.fixture
def builds(monkeypatch, tmp_path):
    """`compiled_machine` on a device that is not here, with a cache of its own; -> the sources compiled."""
    compiled, names = [], []

    def load(name, sources, *, build_directory, extra_cuda_cflags, is_python_module):
        compiled.append((Path(sources[0]).read_text(), extra_cuda_cflags))
        if "undefined_thing" in compiled[-1][0]:
            raise RuntimeError(f"Error building extension: {sources[0]}(1): undefined_thing is undefined")
        # torch's own versioner: a name that was built before gets another file.
        version = sum(name == earlier for earlier in names)
        names.append(name)
        (Path(build_directory) / f"{name}{f'_v{version}' if version else ''}.so").write_bytes(b"")

    monkeypatch.setattr(cpp_extension, "load", load)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(native_cuda, "Machine", lambda device, library: library)
    monkeypatch.setattr(type(native_cuda.CPP), "loaded", lambda self, path: path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native_cuda.compiled_machine.cache_clear()
    yield compiled
    native_cuda.compiled_machine.cache_clear()


def test_a_library_is_compiled_once_for_its_type_and_labels_and_that_is_said(builds, caplog):
    device = torch.device("cuda", 0)
    wanted = [(torch.float32, 32, SIZES, 24), (torch.float32, 32, SIZES, 32), (torch.float64, 32, SIZES, 24)]
    with caplog.at_level(logging.WARNING, "lab.semicrf"):
        paths = [native_cuda.compiled_machine(device, *one) for one in wanted]
    assert len(builds) == len(set(paths)) == 3 and all(path.is_file() for path in paths)
    assert "for up to 24 labels in float32 on sm_90, once" in caplog.text
    assert all(options == ["-arch=sm_90"] for _, options in builds)
    native_cuda.compiled_machine.cache_clear()  # another process
    assert [native_cuda.compiled_machine(device, *one) for one in wanted] == paths and len(builds) == 3
    assert len(os.listdir(paths[0].parent)) == 3


def test_a_library_that_went_is_built_again_in_the_same_process(builds):
    key = torch.device("cuda", 0), torch.float32, 32, SIZES, 24
    path = native_cuda.compiled_machine(*key)
    path.unlink()
    native_cuda.compiled_machine.cache_clear()
    assert native_cuda.compiled_machine(*key) == path and path.is_file() and len(builds) == 2


def test_the_compilers_words_are_shown_and_nothing_is_left(builds, tmp_path):
    with pytest.raises(MissingError, match="undefined_thing is undefined") as told:
        native_cuda.compile_to(tmp_path / "a.so", "int x = undefined_thing;", "sm_90")
    assert "backend='torch'" in str(told.value.fix) and not list(tmp_path.iterdir())


def test_an_error_of_a_launch_has_cudas_words_and_the_kernels_name(monkeypatch):
    class Library:
        def launch(self, *arguments):
            return 700

        def words_of(self, status):
            return b"an illegal memory access was encountered"

    class Stream:
        cuda_stream = 3

    machine = native_cuda.Machine.__new__(native_cuda.Machine)
    machine.library = Library()
    with pytest.raises(GpuError, match="CUDA error 700: an illegal memory access") as told:
        machine.launch(cuda_plan.Launch("messages", (1,)), {}, Stream())
    assert told.value.location == "messages"


def test_the_host_can_launch_every_kernel():
    named = re.findall(r"NAMED\((\w+)\)", native_cuda.SOURCE.read_text())
    assert named[1:] == list(cuda_plan.kernels())  # the first is the macro's own


def nvrtc():
    """NVIDIA's compiler for run time, from its wheel: it needs no toolkit, and sees the kernels alone."""
    found = sorted(Path(torch.__file__).parents[1].glob("nvidia/*/lib/libnvrtc.so*"))
    if not found:
        pytest.skip("no libnvrtc beside torch")
    return ctypes.CDLL(str(found[-1]))


@pytest.mark.parametrize(
    "target, labels, dtype", [("compute_61", 24, torch.float32), ("compute_90", 128, torch.float64)], ids=str
)
def test_the_kernels_compile_without_a_gpu_and_have_no_atomics(target, labels, dtype):
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    text = native_cuda.source_text(dtype, SIZES.padded(labels), SIZES).encode()
    library.nvrtcCreateProgram(ctypes.byref(program), text, b"semicrf.cu", 0, None, None)
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={target}".encode(), b"-std=c++17")
    status = library.nvrtcCompileProgram(program, 2, options)
    if status == 5 and target == "compute_61":
        pytest.skip("this NVRTC no longer knows Pascal")
    assert status == 0
    library.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    library.nvrtcGetPTX(program, ptx)
    code = ptx.value.decode()
    assert ".entry messages(" in code and ".entry best_path(" in code
    assert "atom." not in code and "red." not in code.replace("shared.", "")
