/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * TCP payload of watched processes, without a probe in the process and without cost for system calls that do not use
 * sockets.
 *
 * Payload is captured where the kernel reports that a socket transferred it (sock_send_length and sock_recv_length,
 * Linux 6.3) or, before that, where system calls return (sys_exit). In both modes the position of the stream (write_seq,
 * copied_seq) shows bytes that no call accounts for. Sockets are tracked from connect or accept to their destruction by
 * inet_sock_set_state and tcp_destroy_sock (lifecycle.h).
 *
 * Multipath TCP: the subflows are TCP sockets, so connections are reported; payload moves on the parent socket and is
 * counted as bypassed. Kernel TLS changes the length of what is sent: likewise.
 *
 * Minimum kernel of the programs: Linux 5.17 (bpf_loop; BTF tracepoints 5.5, bpf_get_current_task_btf 5.11,
 * bpf_task_pt_regs 5.15), and 6.3 for on_send and on_receive.
 */
#include "capture.h"
#include "lifecycle.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* ---- payload ---- */

/* `dir` is passed by value: the verifier loses the bounds of a variable whose address is taken. */
static __always_inline struct scratch *scratch_of(u32 dir)
{
	u32 key = dir;
	return bpf_map_lookup_elem(&scratches, &key);
}

static __always_inline void apply_verdict(struct socket_state *st)
{
	u64 id = st->id;
	u8 *v = bpf_map_lookup_elem(&verdicts, &id);
	if (v) {
		st->verdict = *v;
		bpf_map_delete_elem(&verdicts, &id);
	}
}

/*
 * Advances the recorded position of the stream to its current position `end` and returns the number of bytes between them.
 * Usually that is the length of the call (`n`). It is larger if bytes bypassed the programs, and smaller if an earlier
 * event of another thread has already accounted for the bytes of this one.
 */
static __always_inline u64 advance(const struct sock *sk, struct socket_state *st, u32 dir, u32 seq, u64 n, u64 *end)
{
#pragma unroll
	for (int i = 0; i < 3; i++) {
		u64 known = st->next[dir];
		u64 now = offset_of(st, dir, seq, known);
		if (now != known + n && now > known && past_fin(sk, st, dir, seq))
			now--;
		if (now <= known)
			break;
		if (__sync_val_compare_and_swap(&st->next[dir], known, now) == known) {
			*end = now;
			return now - known;
		}
	}
	*end = st->next[dir];
	return 0;
}

/*
 * Accounts for `n` bytes transferred on a tracked socket, including bytes that bypassed the programs before them. Returns
 * 1 if the bytes are to be copied: then the header and the offset of the iterator in the scratch are set.
 */
static __always_inline int accept_io(const struct sock *sk, struct socket_state *st, struct scratch *s, struct flow_counters *f,
				     u32 dir, u32 seq, u64 n)
{
	u64 end, moved;

	if (!st->verdict)
		apply_verdict(st);
	if (st->verdict == LEAVE_ALONE) {
		f->seen += n;
		f->left_alone += n;
		return 0;
	}
	moved = advance(sk, st, dir, seq, n, &end);
	f->seen += moved;
	if (moved > n)
		f->dropped[BYPASSED] += moved - n;
	if (!st->reported && !report_opened(st)) {
		count_ring_full(f, moved < n ? moved : n);
		return 0;
	}
	if (!st->inode && !st->inode_reported)
		report_inode(sk, st);
	s->header.kind = R_DATA;
	s->header.direction = dir;
	s->header.flags = CALL_START;
	s->header.reason = NOT_MISSING;
	s->header.socket = st->id;
	s->header.time = bpf_ktime_get_ns();
	if (moved < n) {
		s->header.offset = end - moved;
		if (moved)
			report_missing(s, f, moved, CONCURRENT);
		return 0;
	}
	s->iter.offset = end - n;
	return 1;
}

static __always_inline void capture(struct scratch *s, struct flow_counters *f, u64 n, u64 nr, u8 reason)
{
	if (is_socket_call(nr))
		s->header.flags |= SOCKET_CALL;
	if (reason) {
		s->header.offset = s->iter.offset;
		report_missing(s, f, n, reason);
	} else {
		copy_payload(s, f);
	}
}

/* ---- at the socket (Linux 6.3) ---- */

static __always_inline int is_tcp(const struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;
	return (family == AF_INET || family == AF_INET6) && sk->sk_protocol == IPPROTO_TCP;
}

/* Whether payload was transferred: no error, and nothing that leaves the position of the stream unchanged. */
static __always_inline int is_payload(s64 ret, u32 flags)
{
	return ret > 0 && !(flags & (MSG_PEEK | MSG_ERRQUEUE | MSG_OOB));
}

static __always_inline int sock_io(struct sock *sk, int ret, int flags, u32 dir)
{
	struct socket_state *st;
	struct task_struct *task;
	struct pt_regs *r;
	struct tcp_sock *tp;
	struct account *a;
	struct scratch *s;
	u64 key = (u64)sk, nr;
	s64 index = 0;
	u32 pid;
	u8 reason;

	if (!is_tcp(sk))
		return 0;
	st = bpf_map_lookup_elem(&sockets, &key);
	if (!st) {
		if (!is_payload(ret, flags))
			return 0;
		pid = current_tgid();
		a = bpf_map_lookup_elem(&processes, &pid);
		if (!a)
			return 0;
		st = track_existing(sk, pid, dir, ret);
		if (!st) {
			if (inode_of(sk)) {
				a->flow[dir].seen += ret;
				a->flow[dir].dropped[SOCKET_TABLE_FULL] += ret;
			}
			return 0;
		}
	} else if (!st->established && is_payload(ret, flags)) {
		begin_midstream_state(sk, st, dir, ret);
	}
	task = bpf_get_current_task_btf();
	r = (struct pt_regs *)bpf_task_pt_regs(task);
	nr = r->orig_ax;
	reason = check_registers(task, r, sk);
	if (!reason && (nr == NR_SENDMMSG || nr == NR_RECVMMSG))
		index = message_index(r, sk, nr, ret);
	if (!is_payload(ret, flags))
		return 0;
	a = bpf_map_lookup_elem(&processes, &st->pid);
	s = scratch_of(dir);
	tp = bpf_skc_to_tcp_sock(sk);
	if (!a || !s || !tp)
		return 0;
	if (!accept_io(sk, st, s, &a->flow[dir], dir, dir == SENT ? tp->write_seq : tp->copied_seq, ret))
		return 0;
	if (!reason && dir == RECEIVED && (flags & MSG_TRUNC))
		reason = DISCARDED;
	if (!reason && (nr == NR_SENDMMSG || nr == NR_RECVMMSG)) {
		if (index < 0)
			reason = AMBIGUOUS;
		else if (!iter_message(&s->iter, r->si + MMSGHDR_SIZE * index))
			reason = UNREADABLE;
		s->iter.left = s->iter.message_left = ret;
		s->iter.message_count = 0;
		s->iter.iovs_left = MAX_IOVS;
	} else if (!reason) {
		reason = locate_buffers(&s->iter, r, nr, ret);
	}
	capture(s, &a->flow[dir], ret, nr, reason);
	return 0;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_send, struct sock *sk, int ret, int flags)
{
	return sock_io(sk, ret, 0, SENT);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_receive, struct sock *sk, int ret, int flags)
{
	return sock_io(sk, ret, flags, RECEIVED);
}

/* ---- at the return of the system call (any kernel) ---- */

/* Sums up the lengths of the messages of a sendmmsg or recvmmsg. */
static long add_message_length(u32 i, struct copy_ctx *c)
{
	struct user_iov_iter *w = &c->s->iter;
	u32 length = 0;
	if (bpf_probe_read_user(&length, 4, (void *)(w->messages + MMSGHDR_SIZE * (u64)i + MMSGHDR_LENGTH)))
		return 1;
	w->left += length;
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_exit, struct pt_regs *r, long ret)
{
	struct task_struct *task;
	struct socket_state *st;
	struct account *a;
	struct scratch *s;
	struct sock *sk;
	u64 nr = r->orig_ax, n = ret, key;
	u32 pid, dir, flags = 0;
	u8 reason;

	switch (nr) {
	case NR_WRITE:
	case NR_WRITEV:
	case NR_PWRITEV2:
	case NR_SENDTO:
	case NR_SENDMSG:
	case NR_SENDMMSG:
		dir = SENT;
		break;
	case NR_RECVFROM:
	case NR_RECVMMSG:
		flags = r->r10;
		dir = RECEIVED;
		break;
	case NR_RECVMSG:
		flags = r->dx;
		dir = RECEIVED;
		break;
	case NR_READ:
	case NR_READV:
	case NR_PREADV2:
		dir = RECEIVED;
		break;
	default:
		return 0;
	}
	if (!is_payload(ret, flags))
		return 0;
	pid = current_tgid();
	a = bpf_map_lookup_elem(&processes, &pid);
	if (!a && !bpf_map_lookup_elem(&children, &pid))
		return 0;
	task = bpf_get_current_task_btf();
	if (task->thread_info.status & TS_COMPAT) /* other call numbers and registers; the position of the stream shows the bytes */
		return 0;
	sk = sock_from_fd(task, r->di);
	if (!sk || BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP || BPF_CORE_READ(sk, sk_type) != SOCK_STREAM)
		return 0;
	u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (family != AF_INET && family != AF_INET6)
		return 0;
	barrier_var(dir);
	dir &= 1; /* for the verifier, which does not track the bounds through the switch */
	s = scratch_of(dir);
	if (!s)
		return 0;
	if (nr == NR_SENDMMSG || nr == NR_RECVMMSG) {
		struct copy_ctx c = { s, 0 };
		s->iter.messages = r->si;
		s->iter.left = 0;
		bpf_loop((u32)ret, add_message_length, &c, 0);
		n = s->iter.left;
		if (!n)
			return 0;
	}
	key = (u64)sk;
	st = bpf_map_lookup_elem(&sockets, &key);
	if (!st) {
		if (!a)
			return 0;
		st = track_existing(sk, pid, dir, n);
		if (!st) {
			a->flow[dir].seen += n;
			a->flow[dir].dropped[SOCKET_TABLE_FULL] += n;
			return 0;
		}
	} else if (!st->established) {
		begin_midstream_state(sk, st, dir, n);
	}
	a = bpf_map_lookup_elem(&processes, &st->pid);
	if (!a || !accept_io(sk, st, s, &a->flow[dir], dir, position(sk, dir), n))
		return 0;
	if (dir == RECEIVED && (flags & MSG_TRUNC)) {
		reason = DISCARDED;
	} else if (nr == NR_SENDMMSG || nr == NR_RECVMMSG) {
		s->iter.left = n;
		s->iter.segment = 0;
		s->iter.messages = r->si;
		s->iter.message_count = ret;
		s->iter.message_left = 0;
		s->iter.iovs_left = MAX_MMSG_IOVS;
		reason = NOT_MISSING;
	} else {
		reason = locate_buffers(&s->iter, r, nr, n);
	}
	capture(s, &a->flow[dir], n, nr, reason);
	return 0;
}
