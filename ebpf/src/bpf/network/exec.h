/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Execution of programs: a process that executes a watched program becomes a watched process before the first instruction
 * of the program, so that all of its traffic is captured.
 */
#pragma once
#include "socket.h"

static __always_inline int is_watched_program(const struct program_name *p)
{
	return bpf_map_lookup_elem(&watched_programs, p) != 0;
}

/* By `task_struct.comm`: the name of the executed file, truncated to 15 bytes. */
static __always_inline int matches_comm(struct task_struct *task)
{
	struct program_name p = {};
	bpf_probe_read_kernel_str(p.name, sizeof p.name, task->comm);
	return is_watched_program(&p);
}

/* By the file name of argv[0], truncated to 15 bytes. */
static __always_inline int matches_argv0(struct task_struct *task)
{
	char argument[128];
	struct program_name p = {};
	u64 start = BPF_CORE_READ(task, mm, arg_start);
	u32 folder = 0;
	long n = bpf_probe_read_user_str(argument, sizeof argument, (void *)start);

	for (u32 i = 0; i < sizeof argument; i++) {
		if ((long)i >= n)
			break;
		if (argument[i] == '/')
			folder = i + 1;
	}
	/* Read again instead of copied: a variable offset into the stack would cost the verifier more states. */
	if (n <= 0 || bpf_probe_read_user_str(p.name, sizeof p.name, (void *)(start + folder)) <= 0)
		return 0;
	return is_watched_program(&p);
}

static __always_inline void handle_exec(struct task_struct *task)
{
	struct notice n = {};
	u32 pid = tgid_of(task);

	if (!pid)
		return;
	if (matches_comm(task) || matches_argv0(task))
		watch_unconfirmed(pid);
	else if (!report_every_exec && !bpf_map_lookup_elem(&processes, &pid))
		return;
	n.kind = R_EXEC;
	n.pid = pid;
	n.time = bpf_ktime_get_ns();
	emit_or_store(&n);
}
