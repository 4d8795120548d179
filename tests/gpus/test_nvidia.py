"""NVIDIA GPUs by nvidia-smi, or by NVML in a container without it; a broken driver is never "no GPU"."""

from __future__ import annotations

import stat
import subprocess
import sys
import types

import pytest

from lab.cli import doctor
from lab.core.options import Options
from lab.engines.docker.host import site_for
from lab.engines.local.engine import LocalEngine
from lab.errors import GpuError
from lab.gpus import nvidia
from lab.gpus.cdi import Devices
from lab.gpus.discover import look
from lab.gpus.nvidia import cards_without_driver, nvidia_inventory, parse_nvidia_smi
from lab.images.spec import load

ROW = "3, GPU-aa-1, NVIDIA H200, 580.159.04, 143771, 700.00, 1980, 3201, 9.0, Disabled"


def nvidia_gpus(env=None):
    return nvidia_inventory(env).usable


def test_every_column_is_read():
    (gpu,) = parse_nvidia_smi(f"{ROW}\n")
    assert (gpu.vendor, gpu.index, gpu.uuid, gpu.name) == ("nvidia", 3, "GPU-aa-1", "NVIDIA H200")
    assert (gpu.driver, gpu.arch, gpu.mem_bytes) == ("580.159.04", "sm_90", 143771 * 1024**2)
    assert (gpu.power_limit_w, gpu.max_sm_mhz, gpu.max_mem_mhz) == (700.0, 1980.0, 3201.0)
    assert gpu.render_node is None


def test_columns_that_the_driver_does_not_report_are_none():
    (gpu,) = parse_nvidia_smi("0, GPU-a, GB10, 580.1, [N/A], [N/A], [Not Supported], [N/A], [N/A], [N/A]\n")
    values = (gpu.mem_bytes, gpu.power_limit_w, gpu.max_sm_mhz, gpu.max_mem_mhz, gpu.arch)
    assert values == (None,) * 5


@pytest.mark.parametrize("cap, arch", [("9.0", "sm_90"), ("10.3", "sm_103"), ("9", None), ("9.0a", None)])
def test_the_architecture_is_the_compute_capability_without_its_dot(cap, arch):
    assert [gpu.arch for gpu in parse_nvidia_smi(ROW.replace("9.0,", f"{cap},"))] == [arch]


def test_lines_that_are_no_row_are_passed_over_and_what_follows_is_read():
    text = (
        f"warning: infoROM is corrupted\n\n{ROW}\nnote, see the log\n{ROW.replace('3, GPU', '4, GPU', 1)}\n"
    )
    assert [gpu.index for gpu in parse_nvidia_smi(text)] == [3, 4]


@pytest.mark.parametrize("odd", [f"{ROW}, 1", ROW.rpartition(",")[0], "4, GPU-bb-2", "[Unknown], GPU-bb-2"])
def test_a_gpu_in_another_number_of_columns_is_an_error_and_not_left_out(odd):
    with pytest.raises(GpuError, match="columns instead of 10"):
        parse_nvidia_smi(f"{ROW.replace('3, GPU', '2, GPU', 1)}\n{odd}\n")


def test_names_with_a_comma_are_quoted_as_in_csv():
    (gpu,) = parse_nvidia_smi(ROW.replace("NVIDIA H200", '"NVIDIA H200, 141 GB"'))
    assert gpu.name == "NVIDIA H200, 141 GB"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts a program named nvidia-smi alone on PATH."""

    def make(script: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("PATH", str(tmp_path))
    return make


def test_nvidia_smi_is_asked_for_the_columns_in_the_order_they_are_read(smi):
    columns = (
        "index,uuid,name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory,"
        "compute_cap,mig.mode.current"
    )
    smi(
        f'#!/bin/sh\n[ "$*" = "--query-gpu={columns} --format=csv,noheader,nounits" ] || exit 9\n'
        f'echo "{ROW}"\necho noise >&2\n'
    )
    assert nvidia_gpus() == parse_nvidia_smi(ROW)


@pytest.mark.parametrize(
    "text",
    [
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure",
    ],
)
@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_machine_that_says_it_has_no_gpu_has_none(smi, text, stream, tmp_path):
    smi(f'#!/bin/sh\necho "{text}" >&{stream}\nexit 9\n')
    assert nvidia_gpus({"LAB_SYS_ROOT": str(tmp_path)}) == []


def card_on_the_bus(sys_root, kind="0x030200"):
    card = sys_root / "bus/pci/devices/0000:0b:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text(f"{kind}\n")


@pytest.mark.parametrize("kind, is_gpu", [("0x030200", True), ("0x030000", True), ("0x040300", False)])
def test_a_gpu_on_the_bus_whose_driver_is_not_loaded_is_an_error(smi, tmp_path, kind, is_gpu):
    card_on_the_bus(tmp_path / "sys", kind)
    smi('#!/bin/sh\necho "It failed because it couldn\'t communicate with the NVIDIA driver."; exit 9\n')
    env = {"LAB_SYS_ROOT": str(tmp_path / "sys")}
    if not is_gpu:  # its sound device alone
        assert nvidia_gpus(env) == []
        return
    with pytest.raises(GpuError, match="driver is not loaded") as caught:
        nvidia_gpus(env)
    assert "0000:0b:00.0" in str(caught.value) and "--gpus none" in str(caught.value)


# MIG

HALF = "1, GPU-bb, NVIDIA A100-SXM4-40GB, 535.1, 40960, 400.00, 1410, 1215, 8.0, Enabled"
LISTING = """\
GPU 0: NVIDIA H200 (UUID: GPU-aa-1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-GPU-bb/9/0)
"""


def test_a_gpu_that_mig_divides_is_replaced_by_its_instances(smi):
    smi(f'#!/bin/sh\nif [ "$1" = -L ]; then echo "{LISTING}"; else echo "{ROW}"; echo "{HALF}"; fi\n')
    whole, first, second = nvidia_gpus()
    assert (whole.uuid, whole.parent, whole.number) == ("GPU-aa-1", None, "3")
    assert (first.uuid, first.parent, first.number) == (
        "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
        "GPU-bb",
        "1:0",
    )
    assert (second.uuid, second.number, second.name) == (
        "MIG-GPU-bb/9/0",
        "1:1",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me",
    )
    assert (first.arch, first.driver, first.mem_bytes, first.power_limit_w) == ("sm_80", "535.1", None, None)


def test_a_divided_gpu_without_instances_computes_nothing(smi):
    smi(f'#!/bin/sh\n[ "$1" = -L ] && echo "GPU 1: A100 (UUID: GPU-bb)" || printf "{ROW}\\n{HALF}\\n"\n')
    assert [gpu.uuid for gpu in nvidia_gpus()] == ["GPU-aa-1"], "the other one still does"
    smi(f'#!/bin/sh\n[ "$1" = -L ] && echo "GPU 1: A100 (UUID: GPU-bb)" || echo "{HALF}"\n')
    with pytest.raises(GpuError, match="no instance") as caught:
        nvidia_gpus()
    assert "nvidia-smi mig -cgi" in str(caught.value) and "GPU-bb" in str(caught.value)


def an_empty_one_beside(smi):
    """GPU 3 whole, and on GPU 1 MIG is enabled without an instance."""
    smi(f'#!/bin/sh\n[ "$1" = -L ] && echo "GPU 1: A100 (UUID: GPU-bb)" || printf "{ROW}\\n{HALF}\\n"\n')


def test_a_gpu_that_is_left_out_for_want_of_an_instance_is_told_in_plan_and_doctor(smi):
    an_empty_one_beside(smi)
    (note,) = look({}).notes
    assert note.startswith("GPU 1 (NVIDIA A100-SXM4-40GB, GPU-bb) is left out: MIG is enabled on it")
    assert "nvidia-smi mig -i 1 -cgi" in note
    local, _ = LocalEngine.prepare(Options())
    docker = site_for(load("cuda"), Options(image="cuda"))
    assert local.notes == docker.notes == (note,) and [gpu.uuid for gpu in docker.gpus] == ["GPU-aa-1"]
    _, rows = doctor._check_gpus(Devices({}))
    assert [(row.state, row.detail) for row in rows if "left out" in row.detail] == [("warn", note)]
    assert look({"CUDA_VISIBLE_DEVICES": "3"}).notes == (), "the mask leaves it out"


@pytest.mark.parametrize("named", ["1", "GPU-bb", "GPU-b"])
def test_a_gpu_without_an_instance_that_is_asked_for_by_name_is_refused_with_the_reason(smi, named):
    an_empty_one_beside(smi)
    with pytest.raises(GpuError, match=r"is left out: MIG is enabled"):
        look({"CUDA_VISIBLE_DEVICES": named})
    with pytest.raises(GpuError) as caught:
        LocalEngine.prepare(Options(gpus="1-1" if named == "1" else named))
    assert "is left out: MIG is enabled" in str(caught.value.location)


def test_a_listing_that_fails_is_an_error(smi):
    smi(f'#!/bin/sh\n[ "$1" = -L ] && {{ echo lost >&2; exit 15; }} || echo "{HALF}"\n')
    with pytest.raises(GpuError, match=r"exit code 15.*lost"):
        nvidia_gpus()


def test_a_driver_too_old_for_the_newer_columns_is_asked_without_them(smi):
    row = ",".join(ROW.split(",")[:-2]).replace("580.159.04", "470.82.01")
    cannot = 'echo "Field $1 is not a valid field to query."; exit 2;;'
    before_450 = f'#!/bin/sh\n[ "$1" = -L ] && echo "{LISTING}" && exit 0\n'
    before_450 += f'case "$1" in *compute_cap*) {cannot}'
    smi(f'{before_450} *mig.mode*) {cannot} esac\necho "{row}"\n')
    (gpu,) = nvidia_gpus()
    assert (gpu.uuid, gpu.driver, gpu.arch) == ("GPU-aa-1", "470.82.01", None)
    # One of 470 knows whether MIG is on, without which an empty GPU would be taken for a whole one.
    other = row.replace("3, GPU-aa-1", "7, GPU-x")
    smi(f'{before_450} *mig.mode*) echo "{row}, Disabled"; echo "{other}, Enabled";; esac\n')
    assert [gpu.uuid for gpu in nvidia_gpus()] == ["GPU-aa-1"] and "GPU 7" in look({}).notes[0]


@pytest.mark.parametrize("text", ["0, GPU-1, Tesla T4, 535.1", "WARNING: infoROM is corrupted", ""])
def test_an_answer_without_a_readable_row_is_never_no_gpu(smi, text):
    smi(f"#!/bin/sh\necho '{text}'\n")
    with pytest.raises(GpuError, match="unreadable answer of nvidia-smi"):
        nvidia_gpus()


def test_an_answer_of_bytes_is_an_error_and_no_traceback(smi):
    smi("#!/bin/sh\nprintf '\\377\\376'\n")
    with pytest.raises(GpuError, match="unreadable answer of nvidia-smi"):
        nvidia_gpus()


@pytest.mark.parametrize(
    "line, said",
    [
        ("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.", "GPU is lost"),
        (ROW.replace("3, GPU", "[Unknown Error], GPU", 1), "cannot read: .Unknown Error., GPU"),
    ],
)
def test_a_lost_gpu_beside_a_good_one_is_an_error_and_never_one_gpu_less(smi, line, said):
    smi(f"#!/bin/sh\ncat <<'END'\n{ROW}\n{line}\nEND\n".replace("cat", "/bin/cat"))
    with pytest.raises(GpuError, match=said):
        nvidia_gpus()


def test_a_failure_is_told_with_its_code_and_its_first_words(smi):
    smi(f"#!/bin/sh\necho ' {'x' * 300}y'\nexit 18\n")
    with pytest.raises(GpuError, match=r"exit code 18.*: x{300}\n") as caught:
        nvidia_gpus()
    assert "nvidia-smi" in caught.value.fix


def test_a_program_that_cannot_start_is_a_driver_that_does_not_answer(smi):
    smi("#!/no/such/interpreter\n")
    with pytest.raises(GpuError, match="does not answer"):
        nvidia_gpus()


def test_a_program_that_hangs_is_given_up_after_half_a_minute(smi, monkeypatch):
    smi("")

    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(GpuError, match=r"does not answer.* 30 seconds"):
        nvidia_gpus()


# NVML


class NvmlError(Exception):
    """Stands for pynvml's own exception, which has NVML's code as its value."""

    def __init__(self, value: int = 999) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class NotSupported(NvmlError): ...


class NotFound(NvmlError): ...


def raises(error: Exception):
    def call(*_: object):
        raise error

    return call


@pytest.fixture
def pynvml(smi, monkeypatch):
    """A stand-in for the package nvidia-ml-py that notes how it is started and stopped."""
    module = types.ModuleType("pynvml")
    module.calls = []
    module.NVMLError = NvmlError
    module.NVMLError_NotSupported = module.NVMLError_FunctionNotFound = NotSupported
    module.NVMLError_NotFound = NotFound
    module.nvmlInit = lambda: module.calls.append("init")
    module.nvmlShutdown = lambda: module.calls.append("shutdown")
    module.nvmlSystemGetDriverVersion = lambda: b"550.1"
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetHandleByIndex = lambda index: f"handle {index}"
    module.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle[-1]}"
    module.nvmlDeviceGetName = {"handle 0": b"A100", "handle 1": "H100"}.__getitem__
    module.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=40 + int(handle[-1]))
    module.nvmlDeviceGetCudaComputeCapability = lambda handle: (8 + int(handle[-1]), 0)
    module.nvmlDeviceGetMigMode = raises(NotSupported())
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_nvml_names_the_gpus_where_nvidia_smi_is_missing(pynvml):
    found = [(g.vendor, g.index, g.uuid, g.name, g.driver, g.mem_bytes, g.arch) for g in nvidia_gpus()]
    assert found == [
        ("nvidia", 0, "GPU-0", "A100", "550.1", 40, "sm_80"),
        ("nvidia", 1, "GPU-1", "H100", "550.1", 41, "sm_90"),
    ]
    assert pynvml.calls == ["init", "shutdown"]


def test_nvml_is_closed_when_a_question_fails_and_the_failure_is_a_gpu_error(pynvml):
    pynvml.nvmlDeviceGetUUID = raises(NvmlError(15))
    with pytest.raises(GpuError, match="NVML error 15"):
        nvidia_gpus()
    assert pynvml.calls == ["init", "shutdown"]


@pytest.mark.parametrize("code", [9, 12], ids=["no driver", "no library"])
def test_a_machine_without_a_driver_has_no_gpus(pynvml, tmp_path, code):
    pynvml.nvmlInit = raises(NvmlError(code))
    env = {"LAB_SYS_ROOT": str(tmp_path), "LAB_DEV_ROOT": str(tmp_path)}
    assert nvidia_gpus(env) == [] and pynvml.calls == []


@pytest.mark.parametrize(
    "code", [4, 17, 18, 999], ids=["permission", "operating system", "mismatch", "unknown"]
)
def test_a_failure_to_start_nvml_is_never_no_gpu(pynvml, code):
    pynvml.nvmlInit = raises(NvmlError(code))
    with pytest.raises(GpuError, match=f"NVML error {code}"):
        nvidia_gpus()


def test_nvml_names_the_instances_of_a_gpu_that_mig_divides(pynvml):
    instances = {0: "mig 5", 2: "mig 6"}
    pynvml.nvmlDeviceGetMigMode = lambda handle: [int(handle == "handle 1"), 0]
    pynvml.nvmlDeviceGetMaxMigDeviceCount = lambda handle: 3

    def instance(handle, number):
        if number not in instances:
            raise NotFound
        return instances[number]

    pynvml.nvmlDeviceGetMigDeviceHandleByIndex = instance
    pynvml.nvmlDeviceGetName = lambda handle: "H100 MIG 1g.10gb" if "mig" in handle else "H100"
    pynvml.nvmlDeviceGetUUID = lambda handle: handle.replace("mig ", "MIG-").replace("handle ", "GPU-")
    found = [(g.number, g.uuid, g.parent, g.name) for g in nvidia_gpus()]
    assert found == [
        ("0", "GPU-0", None, "H100"),
        ("1:0", "MIG-5", "GPU-1", "H100 MIG 1g.10gb"),
        ("1:2", "MIG-6", "GPU-1", "H100 MIG 1g.10gb"),
    ]


@pytest.mark.parametrize("nvml", ["no package", "no library"])
def test_without_any_tool_there_are_no_gpus_but_where_the_driver_is_loaded_that_is_an_error(
    pynvml, monkeypatch, tmp_path, nvml
):
    pynvml.nvmlInit = raises(NvmlError(12))
    if nvml == "no package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    env = {"LAB_DEV_ROOT": str(tmp_path)}
    assert nvidia_gpus(env) == []
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(GpuError, match="nothing here can list its GPUs") as caught:
        nvidia_gpus(env)
    assert "--gpus none" in caught.value.fix


def test_a_gpu_without_any_driver_is_said_where_none_was_found_but_not_in_a_container(tmp_path, monkeypatch):
    env = {"LAB_SYS_ROOT": str(tmp_path)}
    monkeypatch.setattr(nvidia, "CONTAINER_MARKS", ())
    assert cards_without_driver(env) is None
    card_on_the_bus(tmp_path)
    said = "an NVIDIA GPU is on the PCI bus (0000:0b:00.0) without NVIDIA's driver"
    assert cards_without_driver(env) == said
    monkeypatch.setenv("LAB_SYS_ROOT", str(tmp_path))
    monkeypatch.delenv("LAB_IMAGE", raising=False)
    assert LocalEngine().notes(()) == (f"{said}: steps run on the CPU",)
    assert cards_without_driver({**env, "LAB_IMAGE": "cpu"}) is None
    monkeypatch.setattr(nvidia, "CONTAINER_MARKS", (str(tmp_path),))
    assert cards_without_driver(env) is None and LocalEngine().notes(()) == ()
