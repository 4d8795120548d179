"""What a container gets, decided without a daemon."""

from __future__ import annotations

import json

import msgspec
import pytest

from lab.core.gpu import Gpu
from lab.core.step import Step
from lab.errors import UsageError
from lab.images import spec as images
from lab.images.container import (
    HostContext,
    analysis_spec,
    container_spec,
    fetch_spec,
    network_settings,
)

STEP = Step(
    name="s", argv=("python", "-m", "lab.rooms.nan.workload"), folder="steps/s", env={"NCCL_DEBUG": "INFO"}
)


HOST = HostContext(
    run_dir="/data/my run",
    hf_cache="/home/u/.cache/huggingface",
    cache="/home/u/.cache/lab",
    uid=1234,
    gid=5678,
    device_gids=("44", "109"),
    host_env={"NIXNAN_SO": "/opt/nixnan.so"},
)


def nvidia(*indices: int) -> list[Gpu]:
    return [Gpu(vendor="nvidia", index=i, uuid=f"GPU-{i}") for i in indices]


def amd(*minors: int) -> list[Gpu]:
    return [
        Gpu(vendor="amd", index=i, uuid=f"GPU-{m}", render_node=f"/dev/dri/renderD{m}")
        for i, m in enumerate(minors)
    ]


def spec(name: str, gpus=(), **fields):
    return container_spec(images.load(name), msgspec.structs.replace(STEP, **fields), list(gpus), HOST)


@pytest.mark.parametrize("name", images.names())
def test_every_image_gives_a_container_the_least_it_needs(name):
    gpus = {"nvidia": nvidia(0), "amd": amd(128), "none": []}[images.load(name).vendor]
    got = spec(name, gpus)
    assert (got.user, got.cap_drop, got.cap_add) == ("1234:5678", ("ALL",), ())
    assert got.read_only and got.init and "no-new-privileges:true" in got.security_opt
    assert (got.stop_signal, got.ipc_mode) == ("SIGINT", "private")
    assert not any("docker.sock" in mount.source for mount in got.mounts)
    assert got.mounts[0].source == "/data/my run" and got.mounts[0].target == got.working_dir == "/out"
    assert got.env["HOME"] == "/tmp" and "exec" in got.tmpfs["/tmp"]


@pytest.mark.parametrize(
    ("mapping", "user", "userns", "groups"),
    [
        ("same", "1234:5678", None, ("44", "109")),
        ("remapped", "1234:5678", "host", ("44", "109")),
        ("rootless-podman", "1234:5678", "keep-id", ("keep-groups",)),
        ("rootless-docker", "0:0", None, ()),
    ],
)
def test_the_user_inside_is_the_one_whose_files_are_the_callers(mapping, user, userns, groups):
    host = msgspec.structs.replace(HOST, user_mapping=mapping)
    got = container_spec(images.load("rocm70"), STEP, amd(128), host)
    assert (got.user, got.userns_mode, got.group_add) == (user, userns, groups)
    assert got.cap_drop == ("ALL",) and "no-new-privileges:true" in got.security_opt
    analysis = analysis_spec(images.load("cpu"), host, inputs="/in")
    assert (analysis.user, analysis.userns_mode, analysis.group_add) == (user, userns, ())


def test_every_container_has_a_limit_of_processes():
    assert spec("cpu").pids_limit == analysis_spec(images.load("cpu"), HOST, inputs="/in").pids_limit == 16384


def test_nvidia_gpus_are_asked_for_by_uuid_never_by_count():
    got = spec("cuda", nvidia(3, 5))
    (request,) = got.device_requests
    assert request.device_ids == ("GPU-3", "GPU-5")
    assert request.capabilities == (("gpu", "compute", "utility"),)
    assert got.devices == () and got.group_add == ()
    assert "CUDA_VISIBLE_DEVICES" not in got.env


NAMED = msgspec.structs.replace(HOST, cdi=True)


def by_cdi(name: str, gpus, host=NAMED):
    named = [msgspec.structs.replace(gpu, cdi=f"{gpu.vendor}.com/gpu={gpu.uuid}") for gpu in gpus]
    return container_spec(images.load(name), STEP, named, host)


def test_gpus_are_asked_for_by_cdi_where_the_engine_knows_it_and_a_specification_names_them():
    (request,) = by_cdi("cuda", nvidia(3, 5)).device_requests
    assert (request.driver, request.capabilities) == ("cdi", ())
    assert request.device_ids == ("nvidia.com/gpu=GPU-3", "nvidia.com/gpu=GPU-5")
    got = by_cdi("rocm70", amd(129))
    assert [r.device_ids for r in got.device_requests] == [("amd.com/gpu=GPU-129",)]
    assert got.devices == () and got.group_add == ("44", "109"), "a specification names no group"


def test_without_cdi_in_the_engine_or_a_name_gpus_are_given_as_before():
    (request,) = by_cdi("cuda", nvidia(3), HOST).device_requests
    assert (request.driver, request.device_ids) == ("nvidia", ("GPU-3",))
    (request,) = container_spec(images.load("cuda"), STEP, nvidia(3), NAMED).device_requests
    assert request.driver == "nvidia"
    assert len(by_cdi("rocm70", amd(129), HOST).devices) == 2
    assert by_cdi("cpu", []).device_requests == ()


def test_the_step_is_told_how_many_gpus_it_was_given():
    assert spec("cuda", nvidia(0, 1)).env["LAB_NUM_GPUS"] == "2"
    assert "LAB_NUM_GPUS" not in spec("cpu").env


def test_amd_gets_kfd_and_only_the_picked_nodes_with_numeric_groups():
    got = spec("rocm70", amd(129, 131))
    assert got.devices == (
        "/dev/kfd:/dev/kfd:rwm",
        "/dev/dri/renderD129:/dev/dri/renderD129:rwm",
        "/dev/dri/renderD131:/dev/dri/renderD131:rwm",
    )
    assert got.group_add == ("44", "109") and got.device_requests == ()
    assert "ROCR_VISIBLE_DEVICES" not in got.env and "HIP_VISIBLE_DEVICES" not in got.env
    assert "seccomp=unconfined" in got.security_opt


def test_amd_nodes_found_elsewhere_are_inside_where_the_drivers_look_for_them():
    elsewhere = [Gpu(vendor="amd", index=0, uuid="GPU-0", render_node="/fake/dev/dri/renderD128")]
    assert spec("rocm70", elsewhere).devices == (
        "/fake/dev/kfd:/dev/kfd:rwm",
        "/fake/dev/dri/renderD128:/dev/dri/renderD128:rwm",
    )


def test_a_memory_limit_is_the_images_own_choice():
    image = images.load("cpu")
    limited = msgspec.structs.replace(image, devices=msgspec.structs.replace(image.devices, mem_limit="4g"))
    assert container_spec(image, STEP, [], HOST).mem_limit is None
    assert container_spec(limited, STEP, [], HOST).mem_limit == "4g"


def test_an_image_without_gpus_gets_no_device_and_no_exception():
    got = spec("cpu")
    assert got.devices == got.device_requests == got.group_add == ()
    assert got.security_opt == ("no-new-privileges:true",)
    assert got.image == "localhost/lab/cpu-torch"


def test_several_gpus_share_the_hosts_ipc_and_one_does_not():
    assert (spec("cuda", nvidia(0, 1)).ipc_mode, spec("cuda", nvidia(0, 1)).shm_size) == ("host", None)
    assert (spec("cuda", nvidia(0)).ipc_mode, spec("cuda", nvidia(0)).shm_size) == ("private", "16g")
    assert spec("cuda", nvidia(0, 1)).network_mode == "bridge"


def test_without_a_network_a_containers_own_name_is_the_loopback_where_ranks_meet():
    """torch's rendezvous asks for it, and would wait for a name server."""
    for alone in (spec("pascal"), spec("cpu"), spec("cuda", nvidia(0))):
        assert (alone.network_mode, alone.hostname) == ("none", "lab")
        assert alone.extra_hosts == {"lab": "127.0.0.1"}
    assert spec("cuda", nvidia(0), nodes=2).network_mode == spec("cpu", nodes=2).network_mode == "host"
    assert (spec("cuda", nvidia(0, 1)).hostname, spec("cuda", nvidia(0, 1)).extra_hosts) == (None, {})


@pytest.mark.parametrize(
    ("image", "gpus", "cdi", "said"),
    [
        ("cuda", [], False, "void"),
        ("cuda", nvidia(0), False, None),
        ("cuda", [msgspec.structs.replace(nvidia(0)[0], cdi="nvidia.com/gpu=0")], True, "void"),
        ("cpu", [], False, None),
    ],
)
def test_nvidias_runtime_as_the_default_gives_no_gpu_that_was_not_asked_for(image, gpus, cdi, said):
    """Images of CUDA say NVIDIA_VISIBLE_DEVICES=all; a request by UUID replaces that, nothing else does."""
    got = container_spec(images.load(image), STEP, gpus, msgspec.structs.replace(HOST, cdi=cdi))
    assert got.env.get("NVIDIA_VISIBLE_DEVICES") == said


def test_nixnan_is_injected_from_the_users_own_file_read_only():
    got = spec("cuda", nvidia(0), tools=("nixnan",))
    assert got.env["CUDA_INJECTION64_PATH"] == "/opt/lab/nixnan.so"
    assert got.env["LOGFILE"] == "/out/steps/s/nixnan.log"
    assert [(m.source, m.read_only) for m in got.mounts if m.target == "/opt/lab/nixnan.so"] == [
        ("/opt/nixnan.so", True)
    ]
    assert "LD_PRELOAD" not in got.env


def test_nsys_goes_before_the_command_and_asks_for_no_privilege():
    got = spec("cuda", nvidia(0), tools=("nsys",))
    assert got.command[:2] == ("nsys", "profile")
    assert got.command[-3:] == ("python3", "-m", "lab.rooms.nan.workload")
    assert "--output=steps/s/profile" in got.command and "--sample=none" in got.command and got.cap_add == ()


def test_a_tool_the_image_lacks_is_refused_by_name():
    with pytest.raises(UsageError, match="no tool 'nsys'"):
        spec("rocm70", amd(128), tools=("nsys",))


def test_what_steers_a_run_passes_into_the_container_and_nothing_else_does():
    stays = {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1", "TORCH_API_KEY": "s"}
    stays |= dict.fromkeys(("CUDA_HOME", "NCCL_TOPO_FILE", "LD_PRELOAD", "PYTHONPATH", "https_proxy"), "/x")
    host = {"NCCL_NVLS_ENABLE": "0", "HSA_XNACK": "1", "NCCL_DEBUG": "WARN", **stays}
    got = container_spec(
        images.load("cuda"), STEP, nvidia(0), msgspec.structs.replace(HOST, host_env=host)
    ).env
    assert got["NCCL_NVLS_ENABLE"] == "0" and got["HSA_XNACK"] == "1"
    assert got["NCCL_DEBUG"] == "INFO", "the step's own setting wins"
    assert not set(got) & set(stays)


def test_the_analysis_sees_its_inputs_read_only_and_no_network_gpu_or_cache():
    got = analysis_spec(
        images.load("cpu"), msgspec.structs.replace(HOST, run_dir="/run/out"), inputs="/run/in"
    )
    assert [(m.source, m.target, m.read_only) for m in got.mounts] == [
        ("/run/out", "/out", False),
        ("/run/in", "/in", True),
    ]
    assert (got.image, got.network_mode) == ("localhost/lab/cpu", "none")
    assert (got.devices, got.device_requests) == ((), ()) and got.user == "1234:5678" and got.read_only
    assert got.command[:4] == ("python3", "-m", "lab", "analyze")


def test_the_spec_is_plain_data():
    document = json.loads(msgspec.json.encode(spec("cuda", nvidia(0), tools=("nixnan",))))
    assert document["mounts"][0] == {"source": "/data/my run", "target": "/out", "read_only": False}


def fetching(**env):
    host = msgspec.structs.replace(HOST, host_env=env)
    return fetch_spec(images.load("cuda"), Step(name="fetch", argv=("python", "-m", "x")), host)


@pytest.mark.parametrize("gpus", [nvidia(), nvidia(0), nvidia(0, 1)])
def test_every_step_is_offline_for_the_hub_and_may_only_read_models(gpus):
    got = spec("cuda", gpus)
    assert (got.env["HF_HUB_OFFLINE"], got.env["TRANSFORMERS_OFFLINE"]) == ("1", "1")
    (models,) = [mount for mount in got.mounts if mount.target == "/hf"]
    assert models.read_only and got.env["HF_HUB_CACHE"] == "/hf"
    assert got.env["HF_HOME"].startswith("/tmp/"), "the token file of a login stays outside"


def test_a_fetch_has_the_network_and_writes_models_but_has_no_gpu():
    got = fetching()
    (models,) = [mount for mount in got.mounts if mount.target == "/hf"]
    assert not models.read_only and got.network_mode == "bridge"
    assert not {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} & set(got.env)
    assert not got.device_requests and got.cap_drop == ("ALL",) and got.read_only


@pytest.mark.parametrize(
    "env, network",
    [
        ({"HTTPS_PROXY": "http://127.0.0.1:3128"}, "host"),
        ({"https_proxy": "localhost:3128"}, "host"),
        ({"HF_ENDPOINT": "http://[::1]:8080"}, "host"),
        ({"HTTPS_PROXY": "http://me:pw@proxy.example:3128"}, "bridge"),
        ({"NO_PROXY": "localhost,127.0.0.1"}, "bridge"),
        ({"HTTPS_PROXY": "http://[bad"}, "bridge"),
    ],
)
def test_a_proxy_on_this_hosts_loopback_is_reached_through_the_hosts_network(env, network):
    got = fetching(**env)
    assert got.network_mode == network
    assert not set(env) & set(got.env), "what reaches the Hub travels on standard input, never in the spec"


def test_how_to_reach_the_hub_is_taken_in_both_cases_and_nothing_else_is():
    names = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "HF_ENDPOINT")
    wanted = {name: f"value-{name}" for name in names}
    assert network_settings({**wanted, "HF_TOKEN": "t", "PATH": "p", "ALL_PROXY": ""}) == wanted
