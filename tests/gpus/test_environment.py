"""Which of the caller's variables enter a container, and what is said of the others."""

from __future__ import annotations

import re

import pytest

from lab.gpus.environment import TABLE, belongs, passage, relevant_env
from lab.secrets import HIDDEN
from tests.conftest import ROOT

OF_GPU_WORK = """
PYTORCH_CUDA_ALLOC_CONF OMP_NUM_THREADS GPU_MAX_HW_QUEUES MIOPEN_FIND_MODE GLOO_LOG_LEVEL KMP_AFFINITY UCX_TLS
TORCHINDUCTOR_MAX_AUTOTUNE CUBLAS_WORKSPACE_CONFIG MKL_NUM_THREADS NVIDIA_TF32_OVERRIDE VLLM_ATTENTION_BACKEND
XLA_FLAGS HIPBLASLT_TUNING TORCH_NCCL_BLOCKING_WAIT TOKENIZERS_PARALLELISM CUDA_LAUNCH_BLOCKING
"""
EVERYDAY = "HOME PATH USER TERM LANG GPU TF_VAR_region DSN FIREFOX USE_COLOR"


@pytest.mark.parametrize("name", OF_GPU_WORK.split())
def test_variables_of_gpu_work_pass(name):
    assert passage({name: "1"}) == ({name: "1"}, ())


@pytest.mark.parametrize("name", ["NCCL_API_KEY", "VLLM_TOKEN", "EDITOR", "MY_CUDA_FLAG"])
def test_secrets_and_what_is_of_no_family_do_not_pass_and_are_not_named(name):
    assert passage({name: "value"}) == ({}, ())


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("NCCL_SOCKET_IFNAME", "ib0", "no interface ib0"),
        ("GLOO_SOCKET_IFNAME", "=eth1", "no interface =eth1"),
        ("UCX_NET_DEVICES", "mlx5_0:1", "no interface mlx5_0:1"),
        ("NCCL_IB_HCA", "mlx5", "no interface mlx5"),
        ("NCCL_TUNER_PLUGIN", "/opt/x.so", "no file /opt/x.so"),
        ("TRITON_PTXAS_BIN", "~/ptxas", "no file ~/ptxas"),
        ("MIOPEN_DB", "a:/opt/db", "no file /opt/db"),
    ],
)
def test_what_a_container_does_not_have_stays_outside_with_a_note_each(name, value, words):
    passed, (note,) = passage({name: value})
    assert passed == {} and note.startswith(f"{name}={value} does not enter containers") and words in note


def test_an_interface_passes_with_the_hosts_network_and_a_path_with_its_mount():
    env = {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_TUNER_PLUGIN": "/opt/plugins/x.so"}
    assert passage(env, network="host", inside=["/opt/plugins"]) == (env, ())
    assert passage(env, network="host", inside=["/opt/plug"]).passed == {"NCCL_SOCKET_IFNAME": "ib0"}
    assert passage({"NCCL_SOCKET_IFNAME": "lo"}).notes == ()


def test_variables_of_this_host_are_named_once_together_and_masks_not_at_all():
    env = {
        "CUDA_HOME": "/usr/local/cuda",
        "LD_PRELOAD": "x.so",
        "PYTHONPATH": "/p",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    passed, (note,) = passage({**env, "NCCL_DEBUG": "INFO"})
    assert passed == {"NCCL_DEBUG": "INFO"}
    assert note.startswith(
        "3 variables of this host do not enter containers: CUDA_HOME, LD_PRELOAD, PYTHONPATH"
    )


def test_the_table_is_documented():
    text = (ROOT / "docs/containers.md").read_text()
    missing = [name for name in TABLE["families"] if f"`{name}" not in text and name not in text]
    assert not missing, "docs/containers.md lists the families"


def test_a_family_is_no_prefix_of_an_everyday_variable():
    assert not any(map(belongs, EVERYDAY.split()))
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+", name) for name in (*TABLE["families"], *TABLE["names"]))


def test_only_what_shapes_a_gpu_run_is_kept_in_order_and_without_secrets():
    env = {
        "TRITON_CACHE_DIR": "/t",
        "HOME": "/root",
        "NCCL_DEBUG": "x 123456 y",
        "CUDA_MODULE_LOADING": "LAZY",
        "LAB_TOKEN": "secret",
        "MY_CUDA_FLAG": "1",
        "API_KEY": "123456",
    }
    kept = relevant_env(env)
    assert list(kept.items()) == [
        ("CUDA_MODULE_LOADING", "LAZY"),
        ("LAB_TOKEN", HIDDEN),
        ("NCCL_DEBUG", f"x {HIDDEN} y"),
        ("TRITON_CACHE_DIR", "/t"),
    ]


def test_this_process_environment_is_meant_unless_another_is_given(monkeypatch):
    monkeypatch.setenv("NCCL_MARK", "here")
    monkeypatch.setenv("OTHER_KEY", "a-long-secret")
    monkeypatch.setenv("NCCL_FILE", "a-long-secret.txt")
    kept = relevant_env()
    assert (kept["NCCL_MARK"], kept["NCCL_FILE"]) == ("here", f"{HIDDEN}.txt")
    assert relevant_env({}) == {}
