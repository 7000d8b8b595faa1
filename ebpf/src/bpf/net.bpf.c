/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * TCP payloads of watched processes, without a probe in the process and without cost for system calls that have nothing
 * to do with sockets.
 *
 * Payloads are taken where the kernel says that a socket moved them (sock_send_length and sock_recv_length, Linux 6.3),
 * or, before that, where system calls return (sys_exit). Either way the stream's position (write_seq, copied_seq) tells
 * whether bytes went by that no call accounts for. Sockets are followed from connect or accept to the end by
 * inet_sock_set_state and tcp_destroy_sock (lives.h).
 *
 * Multipath TCP: its subflows are TCP sockets, so connections are announced; payload moves on the parent socket and is
 * counted as bypassed. Kernel TLS changes the length of what is sent: the same.
 */
#include "copy.h"
#include "lives.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* ---- payload ---- */

/* By value: a variable whose address is taken would be an unknown number to the verifier. */
static __always_inline struct scratch *scratch_of(u32 dir)
{
	u32 key = dir;
	return bpf_map_lookup_elem(&scratches, &key);
}

static __always_inline void take_verdict(struct socket_state *st)
{
	u64 id = st->id;
	u8 *v = bpf_map_lookup_elem(&verdicts, &id);
	if (v) {
		st->verdict = *v;
		bpf_map_delete_elem(&verdicts, &id);
	}
}

/*
 * Moves the stream's known position to where the stream is now and returns by how many bytes; `end` is where it is.
 * Usually that is what the call said (`n`). It is more if bytes went by unseen, and less if another thread's event,
 * which came first, has already accounted for this one's bytes.
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
 * `n` bytes have moved on a socket that is followed. Returns 1 if they are to be copied: then the header of the scratch
 * and the offset of the walk are set, and the position and what went by unseen are accounted for.
 */
static __always_inline int accept_io(const struct sock *sk, struct socket_state *st, struct scratch *s, struct flow *f,
				     u32 dir, u32 seq, u64 n)
{
	u64 end, moved;

	if (!st->verdict)
		take_verdict(st);
	if (st->verdict == LEAVE_ALONE) {
		f->seen += n;
		f->left_alone += n;
		return 0;
	}
	moved = advance(sk, st, dir, seq, n, &end);
	f->seen += moved;
	if (moved > n)
		f->dropped[BYPASSED] += moved - n;
	if (!st->announced && !announce(st)) {
		ring_full(f, moved < n ? moved : n);
		return 0;
	}
	if (!st->inode && !st->inode_asked)
		tell_inode(sk, st);
	s->header.kind = R_DATA;
	s->header.direction = dir;
	s->header.flags = CALL_START;
	s->header.reason = NOT_MISSING;
	s->header.socket = st->id;
	s->header.time = bpf_ktime_get_ns();
	if (moved < n) {
		s->header.offset = end - moved;
		if (moved)
			missing(s, f, moved, CONCURRENT);
		return 0;
	}
	s->walk.offset = end - n;
	return 1;
}

static __always_inline void capture(struct scratch *s, struct flow *f, u64 n, u64 nr, u8 reason)
{
	if (is_socket_call(nr))
		s->header.flags |= SOCKET_CALL;
	if (reason) {
		s->header.offset = s->walk.offset;
		missing(s, f, n, reason);
	} else {
		copy(s, f);
	}
}

/* ---- at the socket (Linux 6.3) ---- */

static __always_inline int is_tcp(const struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;
	return (family == AF_INET || family == AF_INET6) && sk->sk_protocol == IPPROTO_TCP;
}

/* Payload moved: not an error, and not something that leaves the stream where it was. */
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
		pid = current_pid();
		a = bpf_map_lookup_elem(&processes, &pid);
		if (!a)
			return 0;
		st = adopt(sk, pid, dir, ret);
		if (!st) {
			if (inode_of(sk)) {
				a->flow[dir].seen += ret;
				a->flow[dir].dropped[NO_ROOM] += ret;
			}
			return 0;
		}
	} else if (!st->established && is_payload(ret, flags)) {
		join_late(sk, st, dir, ret);
	}
	task = bpf_get_current_task_btf();
	r = (struct pt_regs *)bpf_task_pt_regs(task);
	nr = r->orig_ax;
	reason = trust_registers(task, r, sk);
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
		else if (!walk_message(&s->walk, r->si + MMSGHDR_SIZE * index))
			reason = UNREADABLE;
		s->walk.left = s->walk.message_left = ret;
		s->walk.message_count = 0;
	} else if (!reason) {
		reason = locate(&s->walk, r, nr, ret);
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

/* ---- at the system call's return (any kernel) ---- */

/* Adds up what a sendmmsg or recvmmsg moved. */
static long add_message(u32 i, struct copy *c)
{
	struct walk *w = &c->s->walk;
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
	pid = current_pid();
	a = bpf_map_lookup_elem(&processes, &pid);
	if (!a && !bpf_map_lookup_elem(&children, &pid))
		return 0;
	task = bpf_get_current_task_btf();
	if (task->thread_info.status & TS_COMPAT) /* other numbers, other registers; the position tells of the bytes */
		return 0;
	sk = sock_of(task, r->di);
	if (!sk || BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP || BPF_CORE_READ(sk, sk_type) != SOCK_STREAM)
		return 0;
	u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (family != AF_INET && family != AF_INET6)
		return 0;
	barrier_var(dir);
	dir &= 1; /* for the verifier, which has lost track of the switch */
	s = scratch_of(dir);
	if (!s)
		return 0;
	if (nr == NR_SENDMMSG || nr == NR_RECVMMSG) {
		struct copy c = { s, 0 };
		s->walk.messages = r->si;
		s->walk.left = 0;
		bpf_loop((u32)ret, add_message, &c, 0);
		n = s->walk.left;
		if (!n)
			return 0;
	}
	key = (u64)sk;
	st = bpf_map_lookup_elem(&sockets, &key);
	if (!st) {
		if (!a)
			return 0;
		st = adopt(sk, pid, dir, n);
		if (!st) {
			a->flow[dir].seen += n;
			a->flow[dir].dropped[NO_ROOM] += n;
			return 0;
		}
	} else if (!st->established) {
		join_late(sk, st, dir, n);
	}
	a = bpf_map_lookup_elem(&processes, &st->pid);
	if (!a || !accept_io(sk, st, s, &a->flow[dir], dir, position(sk, dir), n))
		return 0;
	if (dir == RECEIVED && (flags & MSG_TRUNC)) {
		reason = DISCARDED;
	} else if (nr == NR_SENDMMSG || nr == NR_RECVMMSG) {
		s->walk.left = n;
		s->walk.segment = 0;
		s->walk.messages = r->si;
		s->walk.message_count = ret;
		s->walk.message_left = 0;
		reason = NOT_MISSING;
	} else {
		reason = locate(&s->walk, r, nr, n);
	}
	capture(s, &a->flow[dir], n, nr, reason);
	return 0;
}
