/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Process ids of the pid namespace of user space's /proc. They are those of the initial namespace, which the kernel's helpers
 * return, unless the host is a container itself (kind, k3d, minikube). A process outside of the namespace has the id 0.
 *
 * bpf_get_ns_current_pid_tgid is no alternative: it refuses processes in namespaces below the given one, such as pods.
 */
#pragma once
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* Set by the loader. Constants: with the initial namespace the verifier removes the translation. */
const volatile u32 pidns_inode = 0; /* 0: the initial namespace */
const volatile u32 pidns_level = 0; /* its distance from the initial namespace */

/* The number that identifies a `struct pid` in the namespace of this level, if it is in it. Returns 1 if there is none. */
static __always_inline int read_upid(struct pid *pid, u32 level, struct upid *number)
{
	if (BPF_CORE_READ(pid, level) < level)
		return 1;
	return bpf_probe_read_kernel(number, sizeof *number,
				     (void *)__builtin_preserve_access_index(&pid->numbers[0]) + level * sizeof *number) != 0;
}

/* The number of a `struct pid` in the namespace; 0 if it is not in it. */
static __always_inline u32 number_of(struct pid *pid)
{
	struct upid number;

	if (read_upid(pid, pidns_level, &number) || BPF_CORE_READ(number.ns, ns.inum) != pidns_inode)
		return 0;
	return number.nr;
}

/* Thread group id of a task. */
static __always_inline u32 tgid_of(struct task_struct *task)
{
	return pidns_inode ? number_of(BPF_CORE_READ(task, group_leader, thread_pid)) : BPF_CORE_READ(task, tgid);
}

/* Thread group id of the current task, of which bpf_get_current_pid_tgid returned `thread`. */
static __always_inline u32 current_tgid_of(u64 thread)
{
	return pidns_inode ? tgid_of((void *)bpf_get_current_task()) : thread >> 32;
}

/* Thread group id of the current task. */
static __always_inline u32 current_tgid(void)
{
	return current_tgid_of(bpf_get_current_pid_tgid());
}

/* Thread id of the current task. */
static __always_inline u32 current_tid(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return pidns_inode ? number_of(BPF_CORE_READ(task, thread_pid)) : (u32)bpf_get_current_pid_tgid();
}
