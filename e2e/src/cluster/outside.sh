# Makes the namespaces of one host: outside.sh NAME FOLDER GROUP...
# Mounts, control groups, network and host name are private. Processes are not: what BPF programs see are the machine's own numbers.
set -eu
name=$1 folder=$2
shift 2
for group in "$@"; do echo $$ >"$group/cgroup.procs"; done
exec unshare --mount --cgroup --net --uts --propagation private sh "$folder/inside.sh" "$name" "$folder"
