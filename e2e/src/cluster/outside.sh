# Creates the namespaces of one host: outside.sh NAME FOLDER CGROUP...
# The mount, cgroup, network and UTS namespaces are private. The PID namespace is shared, because BPF programs report the pids of
# the initial one.
set -eu
name=$1 folder=$2
shift 2
for group in "$@"; do echo $$ >"$group/cgroup.procs"; done
exec unshare --mount --cgroup --net --uts --propagation private sh "$folder/inside.sh" "$name" "$folder"
