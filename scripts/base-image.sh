#!/usr/bin/env bash
# Make a local base image from Debian packages, for machines that cannot pull one.
#   scripts/base-image.sh            -> local/debian-python:bookworm      Debian and its Python 3.11
#   scripts/base-image.sh python310  -> local/debian-python310:bookworm   with CPython 3.10 from pyenv or $LAB_PYTHON310
#   scripts/base-image.sh python312  -> local/debian-python312:bookworm   the same with 3.12, for the cuda image's lock
# An existing image is kept.
set -euo pipefail
kind=${1:-python}
case $kind in
  python)    ref=local/debian-python:bookworm ;;
  python310 | python312) ref=local/debian-$kind:bookworm ;;
  *) echo "usage: $0 [python|python310|python312]" >&2; exit 2 ;;
esac
docker image inspect "$ref" >/dev/null 2>&1 && { echo "$ref is there"; exit 0; }
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is not installed: apt-get install mmdebstrap" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Manuals and package lists would be a third of the image.
slim=(--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
      --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright'
      --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*')
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

if [ "$kind" = python ]; then
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates "${slim[@]}" bookworm "$work/base.tar"
else
  version=3.${kind#python3}
  named=LAB_${kind^^}
  tree=${!named:-$(pyenv prefix "$(pyenv versions --bare 2>/dev/null | grep -m1 "^${version/./\\.}\\.")" 2>/dev/null || true)}
  [ -x "$tree/bin/python$version" ] || { echo "no CPython $version here: set $named to its prefix" >&2; exit 1; }
  path=/opt/$kind/bin:$path
  # shellcheck disable=SC2016  # $1 is mmdebstrap's: the root of the new system
  copy='mkdir -p "$1/opt/'$kind'" && tar -C '"$(printf %q "$tree")"' --exclude=__pycache__ --exclude="*.a" \
    --exclude=./lib/python'$version'/test --exclude="./lib/python'$version'/site-packages/*" -cf - . | tar -C "$1/opt/'$kind'" -xf -'
  # shellcheck disable=SC2016
  linker='echo /opt/'$kind'/lib >"$1/etc/ld.so.conf.d/'$kind'.conf" && chroot "$1" /sbin/ldconfig'
  libraries=libssl3,libffi8,libbz2-1.0,liblzma5,libsqlite3-0,libreadline8,libncursesw6,zlib1g,libgomp1
  mmdebstrap --quiet --variant=minbase --include="ca-certificates,$libraries" --customize-hook="$copy" \
    --customize-hook="$linker" "${slim[@]}" bookworm "$work/base.tar"
fi
docker import -c 'CMD ["/bin/sh"]' -c "ENV PATH=$path" -c "LABEL lab.base=$kind" "$work/base.tar" "$ref" >/dev/null
echo "$ref: $(docker image inspect -f '{{.Size}}' "$ref" | awk '{printf "%.0f MB", $1/1e6}')"
