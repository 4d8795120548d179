"""Which images the containers of a run are made of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from lab.core.manifest import ImageRecord
from lab.engines.docker.refusals import refuse_another
from lab.engines.docker.which_lab import lab_inside
from lab.images.spec import Image

if TYPE_CHECKING:
    from lab.engines.docker.client import Daemon


class ImageRecords:
    """Each image is asked for once, by whichever thread comes first: later ones get the same content."""

    def __init__(self, image: Image, daemon: Callable[[], Daemon]) -> None:
        self._image, self._daemon = image, daemon
        self._mutex = threading.Lock()
        self._known: dict[str, ImageRecord] = {}

    def of(self, ref: str | None = None) -> ImageRecord:
        """By default of the image that steps run in. Raises EngineError when the engine does not have it."""
        from lab.engines.docker.errors import Context, translated
        from lab.images.saved_checks import load_check

        daemon, ref = self._daemon(), ref or self._image.workload_ref or self._image.ref
        with self._mutex:
            if ref not in self._known:
                with translated(Context(endpoint=daemon.endpoint, image=self._image.name, ref=ref)):
                    found = daemon.client.inspect_image(ref)  # type: ignore[no-untyped-call]
                labels = found["Config"].get("Labels") or {}
                refuse_another(ref, labels, self._image)
                self._known[ref] = ImageRecord(
                    name=self._image.name,
                    ref=ref,
                    id=found["Id"],
                    digests=tuple(found.get("RepoDigests") or ()),
                    wheel_sha256=labels.get("lab.wheel.sha256"),
                    checked=load_check(found["Id"]),
                )
            return self._known[ref]

    def with_lab_inside(self, ref: str | None = None) -> ImageRecord:
        """The same, with the version and content of the lab in the image."""
        record = self.of(ref)
        inside = lab_inside(self._daemon(), str(record.id), self._image.python)
        return msgspec.structs.replace(record, lab_version=inside.version, lab_sha256=inside.sha256)
