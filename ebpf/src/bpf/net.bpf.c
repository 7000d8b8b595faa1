/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * TCP payloads of watched processes, without a probe in the process and without cost for system calls that have nothing
 * to do with sockets.
 *
 * Payloads are taken where the kernel says that a socket moved them (sock_send_length and sock_recv_length, Linux 6.3),
 * or, before that, where system calls return (sys_exit). Either way the stream's position (write_seq, copied_seq) tells
 * whether bytes went by that no call accounts for. Sockets are followed from connect or accept to the end by
 * inet_sock_set_state and tcp_destroy_sock.
 *
 * Multipath TCP: its subflows are TCP sockets, so connections are announced; payload moves on the parent socket and is
 * counted as bypassed. Kernel TLS changes the length of what is sent: the same.
 */
#include "copy.h"
#include "programs.h"

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

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	u32 from = parent->tgid, to = child->tgid;
	if (from != to && (bpf_map_lookup_elem(&processes, &from) || bpf_map_lookup_elem(&children, &from)))
		bpf_map_update_elem(&children, &to, &from, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_process_exit, struct task_struct *task)
{
	u32 pid = task->tgid;
	if (task->pid == task->tgid)
		bpf_map_delete_elem(&children, &pid);
	return 0;
}

/* ---- lives of sockets and processes ---- */

/* A socket begins to listen: at a port that is waited for it makes its process a watched one, at once, so that not
 * even its first connection is missed. */
static __always_inline void on_listen(const struct sock *sk)
{
	static const struct account no_account;
	struct notice n = {};
	struct listen_key key = {};
	struct listener *l, fresh = {};
	u32 pid = current_pid();
	int waited;

	key.netns = netns_of(sk);
	key.port = sk->__sk_common.skc_num;
	waited = bpf_map_lookup_elem(&ports, &key) != 0;
	if (!waited) {
		struct listen_key any = { .port = key.port };
		waited = bpf_map_lookup_elem(&ports, &any) != 0;
	}
	if (waited) {
		u16 port = key.port;
		if (!bpf_map_update_elem(&processes, &pid, &no_account, BPF_NOEXIST))
			bpf_map_update_elem(&filters, &pid, &port, BPF_NOEXIST);
	} else if (!bpf_map_lookup_elem(&processes, &pid)) {
		return;
	}
	l = bpf_map_lookup_elem(&listeners, &key);
	if (l && l->pid == pid) {
		__sync_fetch_and_add(&l->count, 1);
	} else {
		fresh.pid = pid;
		fresh.count = 1;
		bpf_map_update_elem(&listeners, &key, &fresh, BPF_ANY);
	}
	n.kind = R_LISTENING;
	n.pid = pid;
	n.netns = key.netns;
	n.local_port = key.port;
	n.family = sk->__sk_common.skc_family;
	n.time = bpf_ktime_get_ns();
	emit_or_keep(&n);
}

static __always_inline void on_listen_end(const struct sock *sk)
{
	struct listen_key key = { .netns = netns_of(sk), .port = sk->__sk_common.skc_num };
	struct listener *l = bpf_map_lookup_elem(&listeners, &key);
	if (l && __sync_fetch_and_add(&l->count, -1) <= 1)
		bpf_map_delete_elem(&listeners, &key);
}

static __always_inline void on_connect(const struct sock *sk, struct socket_state *before)
{
	struct socket_state st = {};
	u64 key = (u64)sk;
	u32 pid = current_pid();

	if (before) { /* the same socket connects again after a disconnect */
		finish(sk, before, 1);
		bpf_map_delete_elem(&sockets, &key);
	}
	if (!bpf_map_lookup_elem(&processes, &pid))
		return;
	st.id = new_id();
	st.pid = pid;
	st.role = ROLE_INITIATOR;
	bpf_map_update_elem(&sockets, &key, &st, BPF_ANY);
}

static __always_inline void on_accept(const struct sock *sk)
{
	struct listen_key key = { .netns = netns_of(sk), .port = sk->__sk_common.skc_num };
	struct listener *l = bpf_map_lookup_elem(&listeners, &key);
	struct socket_state st = {}, *put;
	struct total totals[2];

	if (!l)
		return;
	st.pid = l->pid;
	if (!bpf_map_lookup_elem(&processes, &st.pid)) /* it is watched no more */
		return;
	st.id = new_id();
	st.role = ROLE_RESPONDER;
	begin(sk, &st, totals);
	if (!wanted_port(st.pid, key.netns, key.port)) {
		st.silent = 1;
		st.verdict = LEAVE_ALONE;
	}
	put = put_state(sk, &st);
	if (put && !st.silent)
		announce(put);
}

static __noinline int state_changed(const struct sock *sk, int old, int new)
{
	struct socket_state *st;
	u64 key = (u64)sk;

	if (sk->sk_protocol != IPPROTO_TCP)
		return 0;
	if (new == TCP_LISTEN) {
		on_listen(sk);
		return 0;
	}
	if (old == TCP_LISTEN) {
		if (new == TCP_CLOSE)
			on_listen_end(sk);
		return 0;
	}
	st = bpf_map_lookup_elem(&sockets, &key);
	if (st && st->established && new == TCP_ESTABLISHED) { /* its end was missed and the memory is another's */
		finish(sk, st, 1);
		bpf_map_delete_elem(&sockets, &key);
		st = 0;
	}
	switch (new) {
	case TCP_SYN_SENT:
		on_connect(sk, st);
		return 0;
	case TCP_ESTABLISHED:
		if (!st) {
			if (old == TCP_SYN_RECV)
				on_accept(sk);
		} else if (!st->established) {
			struct total totals[2];
			begin(sk, st, totals);
			announce(st);
		}
		return 0;
	case TCP_FIN_WAIT1:
		if (st) {
			st->fin_sent = 1;
			if (!st->by)
				st->by = BY_LOCAL;
		}
		return 0;
	case TCP_LAST_ACK:
		if (st)
			st->fin_sent = 1;
		return 0;
	case TCP_CLOSE_WAIT:
		if (st && !st->by)
			st->by = BY_REMOTE;
		return 0;
	case TCP_CLOSE:
		if (!st || !st->established)
			return 0;
		/* From here on a disconnect may renumber the stream. */
		st->last_sent = offset_now(sk, st, SENT) + 1;
		if (!st->by) {
			int error = sk->sk_err;
			st->by = error == ECONNRESET || error == EPIPE ? BY_RESET : error ? BY_UNKNOWN : BY_LOCAL;
		}
		return 0;
	}
	return 0;
}

static __noinline int destroyed(const struct sock *sk)
{
	u64 key = (u64)sk;
	struct socket_state *st = bpf_map_lookup_elem(&sockets, &key);
	if (st) {
		finish(sk, st, 0);
		bpf_map_delete_elem(&sockets, &key);
	}
	return 0;
}

/*
 * The kernel skips a run that would interrupt another of the same program on the same processor: a connection that ends
 * in softirq, while the program is about another's end. A second program stands in for such runs, and for no others.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, const struct sock *sk, int old, int new)
{
	u32 *run = running(STATE);
	if (run)
		*run = 1;
	state_changed(sk, old, new);
	if (run)
		*run = 0;
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(stand_in_state, const struct sock *sk, int old, int new)
{
	u32 *run = running(STATE);
	if (run && *run)
		state_changed(sk, old, new);
	return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(on_destroy, struct sock *sk)
{
	u32 *run = running(DESTROY);
	if (run)
		*run = 1;
	destroyed(sk);
	if (run)
		*run = 0;
	return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(stand_in_destroy, struct sock *sk)
{
	u32 *run = running(DESTROY);
	if (run && *run)
		destroyed(sk);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task)
{
	executed(task);
	return 0;
}
