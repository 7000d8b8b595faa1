/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Execution of programs: one whose name is waited for makes its process a watched one before its first instruction, so
 * that nothing that it says is missed.
 */
#pragma once
#include "sockets.h"

static __always_inline int is_waited_for(const struct program *p)
{
	return bpf_map_lookup_elem(&programs, p) != 0;
}

/* By the name that the kernel gives the task: the file that was executed, up to 15 bytes of it. */
static __always_inline int waited_for_by_file(struct task_struct *task)
{
	struct program p = {};
	bpf_probe_read_kernel_str(p.name, sizeof p.name, task->comm);
	return is_waited_for(&p);
}

/* By the first argument without its folder, up to 15 bytes of it. */
static __always_inline int waited_for_by_argument(struct task_struct *task)
{
	char argument[128];
	struct program p = {};
	u64 start = BPF_CORE_READ(task, mm, arg_start);
	u32 folder = 0;
	long n = bpf_probe_read_user_str(argument, sizeof argument, (void *)start);

	for (u32 i = 0; i < sizeof argument; i++) {
		if ((long)i >= n)
			break;
		if (argument[i] == '/')
			folder = i + 1;
	}
	/* Read again instead of copied: the place in the stack would be one more thing for the verifier to follow. */
	if (n <= 0 || bpf_probe_read_user_str(p.name, sizeof p.name, (void *)(start + folder)) <= 0)
		return 0;
	return is_waited_for(&p);
}

static __always_inline void executed(struct task_struct *task)
{
	static const struct account no_account;
	struct notice n = {};
	u32 pid = task->tgid;

	if (waited_for_by_file(task) || waited_for_by_argument(task))
		bpf_map_update_elem(&processes, &pid, &no_account, BPF_NOEXIST);
	else if (!every_exec && !bpf_map_lookup_elem(&processes, &pid))
		return;
	n.kind = R_EXEC;
	n.pid = pid;
	n.time = bpf_ktime_get_ns();
	emit_or_keep(&n);
}
