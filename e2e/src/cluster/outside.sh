# Creates the namespaces of one host: outside.sh SHARED|NESTED NAME FOLDER CGROUP...
# The mount, cgroup, network and UTS namespaces are private. The PID namespace is that of this machine, or a nested one as in kind.
set -eu
pids=$1 name=$2 folder=$3
# The process that stays outside is in no cgroup of the host.
[ "$pids" != NESTED ] || [ $$ = 1 ] || exec unshare --pid --fork --kill-child sh "$0" "$@"
shift 3
for group in "$@"; do echo $$ >"$group/cgroup.procs"; done
exec unshare --mount --cgroup --net --uts --propagation private sh "$folder/inside.sh" "$pids" "$name" "$folder"
