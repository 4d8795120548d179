"""A run says whether the models that it needs are here, before anything runs."""

from __future__ import annotations

import msgspec
import pytest

from lab.core.options import SlurmOptions
from lab.core.plan import Plan
from lab.core.run import Run
from lab.driver.comparable import look_up, refuse_missing, same_models, with_models
from lab.engines.local.engine import LocalEngine
from lab.engines.slurm.engine import SlurmEngine
from lab.errors import BadDataError, MissingError, UsageError
from lab.hub import MODELS, ModelNeed
from tests.core.test_manifest import a_manifest
from tests.driver.made import a_step
from tests.test_hub import COMMIT, cached

NEED = ModelNeed(model="org/m")
OPTIONAL = ModelNeed(model="org/m", without="without it the weights are random")
HERE = LocalEngine()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def note(need: ModelNeed, engine=HERE, image=None) -> str:
    (text,) = with_models(Plan(steps=()), look_up([need], engine, image), engine).notes
    return text


def test_a_model_that_is_here_is_noted_and_its_commit_recorded(cache):
    cached(cache, "config.json", "model.safetensors")
    looked = look_up([NEED], HERE, None)
    plan = with_models(Plan(steps=(), notes=("first",)), looked, HERE)
    assert plan.notes == ("first", f"model org/m: in this machine's Hub cache, commit {COMMIT[:12]}, 0.0 kB")
    assert COMMIT in plan.inputs[MODELS]
    refuse_missing(looked, HERE, None)


def test_a_missing_model_offers_the_command_that_brings_it(cache):
    assert note(NEED).endswith(
        "its steps will fail, because they run offline; to download it: lab fetch org/m"
    )
    assert note(NEED, image="cuda").endswith("lab fetch org/m --image cuda")
    with pytest.raises(
        MissingError, match="not in this machine's Hub cache, and steps run offline"
    ) as raised:
        refuse_missing(look_up([NEED], HERE, "cuda"), HERE, "cuda")
    assert raised.value.fix == "lab fetch org/m --image cuda" and raised.value.location == str(cache)


def test_a_half_downloaded_model_is_missing_too(cache):
    cached(
        cache, "config.json", "model.safetensors.index.json", model='{"weight_map": {"a": "x.safetensors"}}'
    )
    with pytest.raises(MissingError, match=r"incomplete .*missing: x\.safetensors"):
        refuse_missing(look_up([NEED], HERE, None), HERE, None)


def test_a_run_that_can_do_without_goes_on_and_says_what_that_means(cache):
    refuse_missing(look_up([OPTIONAL], HERE, None), HERE, None)
    assert "not in this machine's Hub cache; without it the weights are random; to download it" in note(
        OPTIONAL
    )


def test_who_lets_local_steps_use_the_hub_is_not_refused_but_containers_stay_offline(cache, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    refuse_missing(look_up([NEED], HERE, None), HERE, None)
    with pytest.raises(MissingError):
        refuse_missing(look_up([NEED], HERE, "cuda"), HERE, "cuda")


def test_other_machines_caches_are_not_judged_by_this_ones(cache):
    slurm = SlurmEngine(SlurmOptions())
    refuse_missing(look_up([NEED], slurm, None), slurm, None)
    plan = with_models(Plan(steps=()), look_up([NEED], slurm, None), slurm)
    assert not plan.inputs and "not in this machine's Hub cache" in plan.notes[0]


@pytest.mark.parametrize("name", ["./gone", "../../etc", "a/b/c"])
def test_a_name_that_is_neither_a_folder_nor_a_hub_id_is_not_offered_a_fetch(cache, name):
    with pytest.raises(UsageError, match="not a Hub id") as raised:
        look_up([ModelNeed(model=name)], HERE, None)
    assert "folder that exists" in raised.value.fix


def test_a_run_without_models_has_no_record_of_them():
    assert with_models(Plan(steps=()), [], HERE) == Plan(steps=())


def begun(folder, need=NEED) -> Run:
    plan = with_models(Plan(steps=()), look_up([need], HERE, None), HERE)
    return Run.create(folder / "run", a_manifest(a_step("one")), inputs=plan.inputs)


def test_a_run_continues_only_with_the_weights_it_began_with(cache, tmp_path):
    cached(cache, "config.json", "model.safetensors")
    run = begun(tmp_path)
    same_models(run, HERE)
    cached(cache, "config.json", "pytorch_model.bin", commit="d" * 40)
    with pytest.raises(UsageError, match="began with another commit of the model"):
        same_models(run, HERE)
    (cache / "models--org--m/refs/main").unlink()
    with pytest.raises(MissingError, match="not in this machine's Hub cache"):
        same_models(run, HERE)


def test_random_weights_are_not_continued_with_fetched_ones(cache, tmp_path):
    run = begun(tmp_path, OPTIONAL)
    same_models(run, HERE)
    cached(cache, "config.json", "model.safetensors")
    with pytest.raises(UsageError, match=r"\(none\) then"):
        same_models(run, HERE)


def test_a_damaged_record_is_an_error_with_its_file(cache, tmp_path):
    cached(cache, "config.json", "model.safetensors")
    run = begun(tmp_path)
    (run.root / MODELS).write_text("{")
    with pytest.raises(BadDataError, match="cannot read the list of models"):
        same_models(run, HERE)


def test_the_record_is_plain_json(cache):
    cached(cache, "config.json", "model.safetensors")
    plan = with_models(Plan(steps=()), look_up([OPTIONAL], HERE, None), HERE)
    assert msgspec.json.decode(plan.inputs[MODELS]) == [
        {"model": "org/m", "commit": COMMIT, "without": OPTIONAL.without}
    ]
