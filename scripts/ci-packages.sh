#!/usr/bin/env bash
# Debian packages that the whole test suite uses. Without root, tests that need them are skipped with a reason.
set -euo pipefail
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "not root on Debian: using what is installed"; exit 0; }
need=()
command -v chromium >/dev/null || need+=(chromium)
command -v git >/dev/null || need+=(git)
command -v busybox >/dev/null || need+=(busybox-static)
python3 -c 'import ensurepip' 2>/dev/null || need+=(python3-venv)
[ ${#need[@]} = 0 ] && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${need[@]}"
