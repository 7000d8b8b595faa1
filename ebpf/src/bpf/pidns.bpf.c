/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Level of a pid namespace that the calling process is in, itself or by descent: /proc does not show it.
 *
 * Minimum kernel: Linux 5.10 (BPF_PROG_TEST_RUN of raw tracepoints).
 */
#include "pidns.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* include/linux/pid_namespace.h */
#define MAX_PID_NS_LEVEL 32

/* Returns the level of the namespace with the inode args[0], or MAX_PID_NS_LEVEL + 1 if the current task is not in it. */
SEC("raw_tracepoint/find_pidns_level")
int find_pidns_level(u64 *args)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	u32 inode = args[0], level;
	struct upid number;

	for (level = 0; level <= MAX_PID_NS_LEVEL; level++)
		if (!read_upid(pid, level, &number) && BPF_CORE_READ(number.ns, ns.inum) == inode)
			break;
	return level;
}
