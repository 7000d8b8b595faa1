/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What capture costs at least: `copy_floor` copies the bytes of each send of one process into a ring of the same size, with the
 * same rule for wake-ups, and does nothing else: no header, no state of a socket, no account. `empty` returns at once.
 *
 * PIECE is set by the compiler's command line: bytes of a record, all of which the sender writes as multiples of it.
 */
#include "vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define MAX_PIECES 64

/* Set by the loader. */
const volatile u32 wake_bytes = 2 << 20;
const volatile u32 watched = 0; /* tgid */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 << 20);
} ring SEC(".maps");

#include "reader.h"

struct sums {
	u64 sent, copied, lost;
	u64 since_query; /* bytes put in the ring since the last query of its backlog */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sums);
} sums SEC(".maps");

SEC("tp_btf/sock_send_length")
int BPF_PROG(copy_floor, struct sock *sk, int ret, int flags)
{
	u32 zero = 0;
	struct pt_regs *r;
	struct sums *s;
	u64 from, left;

	if (bpf_get_current_pid_tgid() >> 32 != watched || ret <= 0)
		return 0;
	s = bpf_map_lookup_elem(&sums, &zero);
	if (!s)
		return 0;
	r = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	from = r->si;
	left = ret;
	s->sent += left;
	for (int i = 0; i < MAX_PIECES && left >= PIECE; i++) {
		void *record = bpf_ringbuf_reserve(&ring, PIECE, 0);
		if (!record)
			break;
		if (bpf_probe_read_user(record, PIECE, (void *)from)) {
			bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
			break;
		}
		bpf_ringbuf_submit(record, wake_flags_of(&s->since_query, PIECE));
		s->copied += PIECE;
		from += PIECE;
		left -= PIECE;
	}
	s->lost += left;
	return 0;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(empty, struct sock *sk, int ret, int flags)
{
	return 0;
}
