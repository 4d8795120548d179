#!/usr/bin/env bash
# A real Slurm on this machine for the tests: one controller, NODES nodes of this host (default 2), each with GPUS
# pretended GPUs (character devices), no systemd, no accounting. Needs root on Debian. A running Slurm is kept.
#   scripts/slurm-node.sh [start|stop|state]
set -euo pipefail
NODES=${NODES:-2} GPUS=${GPUS:-2}
dir=/var/lib/lab-slurm host=$(hostname -s)

packages() {
  command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && return
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins >/dev/null
}

key() {
  install -d -o munge -g munge -m 0755 /run/munge
  install -d -o munge -g munge -m 0700 /var/log/munge /var/lib/munge
  munge -n >/dev/null 2>&1 || su -s /bin/sh munge -c /usr/sbin/munged
}

configuration() {
  local mem=$(( ($(awk '/MemTotal/{print $2}' /proc/meminfo) / 1024 - 1024) / NODES ))
  install -d /var/spool/slurmctld /var/log/slurm /run/slurm "$dir" /etc/slurm
  # The controller must not restore another configuration of this cluster.
  rm -rf /var/spool/slurmctld/*
  : >/etc/slurm/gres.conf
  echo "AutoDetect=off" >>/etc/slurm/gres.conf
  local names=()
  for n in $(seq 1 "$NODES"); do
    names+=("n$n")
    install -d "/var/spool/slurmd-n$n"
    for g in $(seq 0 $((GPUS - 1))); do
      [ -e "$dir/n$n-gpu$g" ] || mknod "$dir/n$n-gpu$g" c 1 3
    done
    echo "NodeName=n$n Name=gpu File=$dir/n$n-gpu[0-$((GPUS - 1))]" >>/etc/slurm/gres.conf
  done
  cat >/etc/slurm/slurm.conf <<C
ClusterName=lab
SlurmctldHost=$host
AuthType=auth/munge
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd-%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd-%n.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=100000,bf_interval=1,default_queue_depth=1000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=15
MinJobAge=600
MaxArraySize=2001
PropagateResourceLimits=NONE
GresTypes=gpu
SlurmdParameters=config_overrides
C
  for n in $(seq 1 "$NODES"); do
    echo "NodeName=n$n NodeHostname=$host NodeAddr=127.0.0.1 Port=$((17000 + n)) CPUs=${CPUS:-4} RealMemory=$mem Gres=gpu:$GPUS State=UNKNOWN" >>/etc/slurm/slurm.conf
  done
  cat >>/etc/slurm/slurm.conf <<C
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:8 PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
C
}

start() {
  if [ "$(sinfo -h -o %t 2>/dev/null | grep -c -E 'idle|mix|alloc')" -gt 0 ]; then
    echo "Slurm is already running"
    return
  fi
  [ "$(id -u)" = 0 ] || { echo "no Slurm, and starting one needs root" >&2; exit 1; }
  packages
  key
  configuration
  slurmctld
  for n in $(seq 1 "$NODES"); do slurmd -N "n$n"; done
  for _ in $(seq 60); do
    [ "$(sinfo -h -N -p gpu -o %t | grep -c idle)" = "$NODES" ] && { sinfo -N -p gpu -o '%N %t %c CPUs %G'; return; }
    sleep 0.5
  done
  sinfo -N >&2
  tail -n 20 -q /var/log/slurm/*.log >&2
  exit 1
}

stop() {
  scontrol shutdown >/dev/null 2>&1 || true
  sleep 1
  pkill -x slurmd || true
  pkill -x slurmctld || true
  pkill -x munged || true
}

case ${1:-start} in
  start) start ;;
  stop) stop ;;
  state) sinfo -N ;;
  *) echo "usage: scripts/slurm-node.sh [start|stop|state]" >&2; exit 2 ;;
esac
