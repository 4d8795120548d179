#!/usr/bin/env bash
# A user with a rootless podman of his own for the tests: Debian's packages, without systemd. Needs root.
# With image names, these are copied to it from the Docker engine: scripts/podman-user.sh localhost/lab/cpu ...
set -euo pipefail
user=${LAB_PODMAN_USER:-lab-podman}
[ "$(id -u)" = 0 ] || { echo "needs root: it makes the user $user" >&2; exit 1; }
if ! command -v podman >/dev/null || ! command -v newuidmap >/dev/null || ! command -v slirp4netns >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends podman uidmap slirp4netns fuse-overlayfs catatonit runc >/dev/null
fi
id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"  # with subordinate uids and gids
uid=$(id -u "$user") home=$(getent passwd "$user" | cut -d: -f6)
run=/run/user/$uid
install -d -m 0755 /run/user
install -d -o "$user" -m 0700 "$run" "$run/podman"
for node in /dev/fuse /dev/net/tun; do  # as udev leaves them
  [ ! -e "$node" ] || chmod 0666 "$node"
done
conf=$home/.config/containers
install -d -o "$user" "$home/.config" "$conf"
if [ -c /dev/fuse ] && [ ! -e "$conf/storage.conf" ] && [ ! -e "$home/.local/share/containers" ]; then
  # Else podman may copy the whole image at each start.
  printf '[storage]\ndriver="overlay"\n[storage.options.overlay]\nmount_program="/usr/bin/fuse-overlayfs"\n' >"$conf/storage.conf"
fi
if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ] && [ ! -e "$conf/containers.conf" ]; then
  # On cgroup v1 crun refuses some hosts, and there is no systemd to ask.
  printf '[engine]\nruntime="runc"\ncgroup_manager="cgroupfs"\n' >"$conf/containers.conf"
fi
as_user() { su "$user" -s /bin/bash -c "cd ~ && XDG_RUNTIME_DIR=$run $1"; }
if ! as_user "podman --remote --url unix://$run/podman/podman.sock info" >/dev/null 2>&1; then
  rm -f "$run/podman/podman.sock"  # of a service that was killed
  # All its streams are its log: whoever reads this script's output would wait for it.
  su "$user" -s /bin/bash -c "cd ~ && XDG_RUNTIME_DIR=$run exec setsid podman system service --time=0 \
    unix://$run/podman/podman.sock" >"$run/service.log" 2>&1 </dev/null &
  for _ in $(seq 120); do
    ! as_user "podman --remote --url unix://$run/podman/podman.sock info" >/dev/null 2>&1 || break
    sleep 0.5
  done
fi
for image in "$@"; do
  docker save "$image" | as_user "podman load" >/dev/null
done
as_user "podman --remote --url unix://$run/podman/podman.sock info" >/dev/null
echo "podman of $user is up: DOCKER_HOST=unix://$run/podman/podman.sock"
