#!/usr/bin/env bash
# Build images on their own bases if those are here or can be pulled, else on bases made of Debian packages.
#   scripts/images-here.sh              cpu (lab/cpu and lab/cpu-torch), pascal and cuda
#   scripts/images-here.sh cpu pascal   only those
# LAB_BUILD_LIMIT_S (1500) limits one image, LAB_PULL_LIMIT_S (30) the attempt to pull a base.
# rocm70 has no stand-in, because its torch comes with its base. After a failure the next image is still built.
set -uo pipefail
cd "$(dirname "$0")/.."
lab=${LAB:-.venv/bin/lab}
[ $# -gt 0 ] || set -- cpu pascal cuda
declare -A stand_in=([cpu]=python [cpu-torch]=python [pascal]=python310 [cuda]=python312)
can_have() { # whether the engine holds this base or gets it in time
  docker image inspect "$1" >/dev/null 2>&1 || timeout "${LAB_PULL_LIMIT_S:-30}" docker pull --quiet "$1" >/dev/null 2>&1
}
failed=()
for name in "$@"; do
  began=$SECONDS
  base=$(sed -n 's/^base = "\(.*\)"/\1/p' "images/${name%-torch}/image.toml")
  arguments=(images build --quiet "$name")
  if ! can_have "$base"; then
    kind=${stand_in[$name]:-}
    [ -n "$kind" ] || { echo "✗ $name: $base cannot be had here, and nothing stands in for it" >&2; failed+=("$name"); continue; }
    scripts/base-image.sh "$kind" || { failed+=("$name"); continue; }
    local_ref=local/debian-$kind:bookworm
    arguments+=(--base "$local_ref")
    # nvcc and the Nsight tools come from NVIDIA's repositories, which a machine that cannot pull rarely reaches.
    [ "$name" != cuda ] || arguments+=(--build-arg NSYS_PACKAGE= --build-arg CUDA_PACKAGES=)
    echo "$name: $base cannot be had here; building on $local_ref"
  fi
  timeout --signal INT "${LAB_BUILD_LIMIT_S:-1500}" "$lab" "${arguments[@]}" || failed+=("$name")
  echo "$name: $((SECONDS - began)) s"
done
docker image ls --filter label=lab.wheel.sha256 --filter reference='localhost/lab*/*' --format 'table {{.Repository}}\t{{.Tag}}\t{{.Size}}'
[ ${#failed[@]} = 0 ] || { echo "not built: ${failed[*]}" >&2; exit 1; }
