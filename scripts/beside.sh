# Functions for scripts that run something beside measurements: on cores that have nothing else to do (SCHED_IDLE).
# shellcheck shell=bash

# Where cgroup v2 shares processors, a policy counts within one cgroup alone.
beside_group=/sys/fs/cgroup/ratewright-beside

# beside_prepare: makes the cgroup, if one is needed
beside_prepare() {
  grep -qs cpu /sys/fs/cgroup/cgroup.subtree_control || return 0
  mkdir -p $beside_group
  echo 1 >$beside_group/cpu.idle
}

# beside_enter: the calling shell and what it starts from now on
beside_enter() {
  chrt --idle --pid 0 $BASHPID
  [ ! -d $beside_group ] || echo $BASHPID >$beside_group/cgroup.procs
}

# beside_stop GROUP: ends the process group of a shell that entered; without one, only removes the cgroup
beside_stop() {
  if [ -n "$1" ]; then
    kill -TERM -- "-$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
  fi
  [ ! -d $beside_group ] || rmdir $beside_group || true
}
