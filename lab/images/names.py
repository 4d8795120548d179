"""The names of images: `registry/repository:tag`.

Without a registry, every engine completes a name to docker.io's. lab's own images are `localhost/lab/NAME`:
what was built here, or what `lab setup` brought here from the registry that LAB_REGISTRY names. No pull of
such a name can reach a stranger's repository.
"""

from __future__ import annotations

LOCAL = "localhost"


def registry_of(ref: str) -> str | None:
    """The registry that this name states; None if an engine would ask docker.io."""
    registry, slash, _ = ref.partition("/")
    return registry if slash and (registry == LOCAL or "." in registry or ":" in registry) else None


def repository_of(ref: str) -> str:
    """The name without registry, tag and digest: `lab/cuda`."""
    registry = registry_of(ref)
    path = ref.removeprefix(f"{registry}/") if registry else ref
    return path.split("@")[0].split(":")[0]
