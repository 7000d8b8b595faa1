# Prepares the namespaces of one host from inside: inside.sh SHARED|NESTED NAME FOLDER
set -eu
pids=$1 name=$2 folder=$3
[ "$pids" != NESTED ] || mount -t proc proc /proc
hostname "$name"
ip link set lo up

# sysfs of this network namespace, and the file systems that are mounted below it.
mount -t sysfs sysfs /sys
version=2
while IFS=: read -r _ controllers _; do
  [ -n "$controllers" ] || continue
  if [ "$version" = 2 ]; then
    version=1
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  fi
  at=/sys/fs/cgroup/${controllers#name=}
  mkdir "$at"
  case $controllers in
    name=*) mount -t cgroup -o "none,$controllers" cgroup "$at" ;;
    *,*)
      mount -t cgroup -o "$controllers" cgroup "$at"
      for one in $(echo "$controllers" | tr , ' '); do ln -s "$controllers" "/sys/fs/cgroup/$one"; done
      ;;
    *) mount -t cgroup -o "$controllers" cgroup "$at" ;;
  esac
done </proc/self/cgroup
if [ "$version" = 2 ]; then
  # A cgroup with processes cannot delegate controllers: the processes move to a child.
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mkdir /sys/fs/cgroup/system
  while read -r pid; do echo "$pid" >/sys/fs/cgroup/system/cgroup.procs; done </sys/fs/cgroup/cgroup.procs
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
  done
fi
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug

# Private state of the host.
mkdir -p "$folder/lib" "$folder/log"
mount --bind "$folder/lib" /var/lib
mount --bind "$folder/log" /var/log
mount -t tmpfs -o mode=755 tmpfs /run
# Mounts propagate between pods and host.
mount --make-rshared /

echo 1 >/proc/sys/net/ipv4/ip_forward
[ ! -e /proc/sys/net/bridge ] || echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
touch "$folder/ready"
exec sleep infinity
