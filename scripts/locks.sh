#!/usr/bin/env bash
# Write images/*/*.lock again: what lab itself needs (pyproject.toml) and what the image adds (*.in), with hashes.
# Needs uv on PATH. The CPU locks are for every Python that lab supports, the others for their image's own.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND="make locks" UV_PYTHON_DOWNLOADS=never
lock() { # lock FILE ARGUMENTS...
  local file=$1
  shift
  uv pip compile --quiet --generate-hashes --no-annotate "${UPGRADE[@]}" "$@" pyproject.toml -o "$file"
}
UPGRADE=(${LAB_UPGRADE:+--upgrade})
linux=(--python-platform x86_64-manylinux_2_28)
lock images/cpu/requirements.lock --universal --python-version 3.10 --extra analysis
lock images/cpu/workload.lock --universal --python-version 3.10 images/cpu/workload.in
lock images/cuda/requirements.lock "${linux[@]}" --python-version 3.12 images/cuda/requirements.in
lock images/pascal/requirements.lock "${linux[@]}" --python-version 3.10 images/pascal/requirements.in
lock images/rocm70/requirements.lock "${linux[@]}" --python-version 3.12 images/rocm70/requirements.in
