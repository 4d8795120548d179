#!/usr/bin/env bash
# Start a Docker engine for the tests if none runs: Debian's docker.io, without systemd. Needs root.
# A running engine is kept, because two engines destroy each other's network bridge.
set -euo pipefail
cd "$(dirname "$0")/.."
docker info >/dev/null 2>&1 && { echo "a Docker engine is already running"; exit 0; }
[ "$(id -u)" = 0 ] || { echo "no Docker engine, and starting one needs root" >&2; exit 1; }
if ! command -v dockerd >/dev/null || ! command -v docker-compose >/dev/null || ! command -v mmdebstrap >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends docker.io docker-compose iptables mmdebstrap ca-certificates >/dev/null
fi
pgrep -x -r D,R,S,T dockerd >/dev/null && { echo "dockerd runs but does not answer: see its log" >&2; exit 1; }
log=${LAB_DOCKERD_LOG:-/var/log/lab-dockerd.log}
# With the stand-in hook in dockerd's PATH, the NVIDIA path can be tested without a GPU.
begin() {
  # Left by an engine that was killed: the next one would wait for a containerd that is dead, or not even reaped yet.
  rm -f /var/run/docker.pid
  pgrep -x -r D,R,S,T containerd >/dev/null || rm -f /var/run/docker/containerd/containerd.pid
  PATH="$PWD/tests/fakebin:$PATH" setsid dockerd >"$log" 2>&1 </dev/null &
  engine=$!
}
begin
for turn in $(seq 180); do
  docker info >/dev/null 2>&1 && { echo "Docker engine $(docker info -f '{{.ServerVersion}}') is up (log: $log)"; exit 0; }
  [ "$turn" -lt 60 ] && ! kill -0 "$engine" 2>/dev/null && begin
  sleep 0.5
done
tail -20 "$log" >&2
exit 1
