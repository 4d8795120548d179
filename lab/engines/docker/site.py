"""Which GPUs the containers of an image will get, by flags and by what this machine has."""

from __future__ import annotations

from lab.core.options import Options
from lab.core.plan import Site
from lab.errors import GpuError, UsageError
from lab.gpus.cdi import read_cdi, with_cdi_names
from lab.gpus.discover import look
from lab.gpus.selection import parse_spec, placeholders, select
from lab.images import spec as images
from lab.images.preflight import refuse_unsuited
from lab.images.spec import Image

DEFAULT_NUM_GPUS = 8  # what a dry run assumes where there is no GPU


def site_for(image: Image, options: Options) -> Site:
    """Raises GpuError for a GPU that is not present or not served by the image, UsageError for GPUs that a
    CPU-only image cannot use.
    """
    if image.vendor == "none":
        if options.gpus not in ("all", "none"):
            raise UsageError(
                f"the image {image.name!r} is CPU-only", fix="drop --gpus, or choose another --image"
            )
        return Site(vendor="none")
    if parse_spec(options.gpus) == []:
        return Site(vendor=image.vendor)
    found = look()
    present = [gpu for gpu in found.gpus if gpu.vendor == image.vendor]
    notes = found.notes if image.vendor == "nvidia" else ()
    if present:
        chosen = select(with_cdi_names(present, read_cdi()), options.gpus, notes)
        refuse_unsuited(image, chosen, [images.load(name) for name in images.names()])
        return Site(vendor=image.vendor, gpus=tuple(chosen), notes=notes)
    if options.dry_run:
        assumed = placeholders(image.vendor, options.gpus, DEFAULT_NUM_GPUS)
        return Site(vendor=image.vendor, gpus=tuple(assumed), resolved=False)
    raise GpuError(
        f"the image {image.name!r} needs {image.vendor} GPUs and none was found on this machine",
        fix="see `lab doctor`; use --image cpu to run without a GPU, or --dry-run to see the plan",
    )
