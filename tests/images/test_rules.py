"""Dockerfiles and locks keep their rules, and each rule catches what it is for."""

from __future__ import annotations

import msgspec
import pytest

from lab.images.targets import targets
from scripts.dockerfiles import dockerfile_rules, lock_rules, locked
from tests.conftest import ROOT

TARGETS = targets()


ALL = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)


CPU = TARGETS[0]


def test_every_image_has_its_dockerfile_and_every_dockerfile_its_image():
    assert [t.name for t in TARGETS] == ["cpu", "cpu-torch", "cuda", "pascal", "rocm70"]
    assert {t.dockerfile.name for t in TARGETS} == {
        path.name for path in (ROOT / "docker").glob("*.Dockerfile")
    }


@ALL
def test_dockerfiles_keep_to_what_the_oldest_builder_reads_and_build_nothing_foreign(target):
    assert dockerfile_rules(target, ROOT) == []


@ALL
def test_locks_hold_exact_versions_with_hashes_and_no_index(target):
    assert lock_rules(target, ROOT) == []


@ALL
def test_an_image_runs_as_nobody_in_particular_without_entrypoint_and_gets_the_wheel_last(target):
    text = (ROOT / target.dockerfile).read_text()
    assert "ENTRYPOINT []" in text and "USER 1000:1000" in text and "WORKDIR /out" in text
    runs = text.split("\nRUN ")
    assert "source=build/images/dist" in runs[-1] and not any(
        "source=build/images/dist" in run for run in runs[:-1]
    )
    assert "--require-hashes --no-deps -r" in text and "SHA256SUMS /usr/share/lab/SHA256SUMS" in runs[-1]
    for label in ("title", "version", "revision", "source", "created", "licenses", "base.name"):
        assert f"org.opencontainers.image.{label}=" in text
    assert 'lab.wheel.sha256="${LAB_WHEEL_SHA256}"' in text and 'lab.lock.sha256="${LAB_LOCK_SHA256}"' in text


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("RUN <<EOF\necho\nEOF", "heredoc"),
        ("RUN cat <<-'END'\nEND", "heredoc"),
        ("COPY --link a b", "COPY or ADD option"),
        ("COPY --from=pip --parents a b", "COPY or ADD option"),
        ("ADD --checksum=sha256:0 a b", "COPY or ADD option"),
        ("RUN --network=none true", "RUN --network"),
        ("HEALTHCHECK --start-interval=1s CMD true", "start-interval"),
        ("FROM debian:12", "FROM debian:12 is not an argument"),
        ("FROM --platform=linux/amd64 debian:12 AS x", "FROM debian:12 is not an argument"),
        ("RUN git clone x", "clones"),
        ("# NVBit lives here", "NVBit"),
        ("ADD https://example.org/nixnan.so /opt/", "nixnan"),
        ("RUN make -C nixnan", "nixnan"),
    ],
)
def test_a_dockerfile_that_breaks_a_rule_is_named(tmp_path, line, complaint):
    broken = with_dockerfile(tmp_path, (ROOT / CPU.dockerfile).read_text() + line + "\n")
    assert any(complaint in found for found in dockerfile_rules(broken, tmp_path))


def test_a_syntax_line_and_another_base_than_the_images_are_named(tmp_path):
    text = (ROOT / CPU.dockerfile).read_text()
    broken = with_dockerfile(
        tmp_path, "# syntax=docker/dockerfile:1\n" + text.replace("slim-bookworm", "slim")
    )
    found = " ".join(dockerfile_rules(broken, tmp_path))
    assert "# syntax line" in found and f"image.toml says {CPU.base}" in found


def with_dockerfile(folder, text):
    (folder / "x.Dockerfile").write_text(text)
    return msgspec.structs.replace(CPU, dockerfile="x.Dockerfile")


HASHED = "numpy==2.0.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"


@pytest.mark.parametrize(
    "name, text, complaint",
    [
        ("cpu", HASHED + "click==8.1\n", "click has no hash"),
        ("cpu", HASHED + "--index-url https://example.org/simple\n", "names an index"),
        ("cpu", HASHED + "click>=8.1 \\\n    --hash=sha256:aa\n", "is not an exact version"),
        ("cpu", HASHED + "torch==2.0.0 \\\n    --hash=sha256:aa\n", "must not name torch"),
        ("cpu-torch", HASHED + "nvidia-nccl==2.0 \\\n    --hash=sha256:aa\n", "must not name nvidia-nccl"),
        ("rocm70", HASHED + "triton==3.0.0 \\\n    --hash=sha256:aa\n", "must not name triton"),
        ("rocm70", HASHED + "Torch==2.0.0 \\\n    --hash=sha256:aa\n", "must not name torch"),
        ("cuda", "# nothing\n", "names no package"),
    ],
)
def test_a_lock_that_breaks_a_rule_is_named(tmp_path, name, text, complaint):
    (tmp_path / "x.lock").write_text(text)
    target = next(t for t in TARGETS if t.name == name)
    found = lock_rules(msgspec.structs.replace(target, lock="x.lock"), tmp_path)
    assert any(complaint in line for line in found), found


def test_the_cpu_locks_hold_what_the_extras_ask_for():
    analysis = locked((ROOT / "images/cpu/requirements.lock").read_text())
    asked = "numpy pandas openpyxl jinja2 matplotlib isal click msgspec pyyaml"
    assert set(asked.split()) <= set(analysis)
