/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Lives of processes and sockets: who is watched, which port is listened on, and each connection from connect or accept to
 * its end.
 */
#pragma once
#include "sockets.h"
#include "programs.h"

/* ---- processes ---- */

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	u32 from = parent->tgid, to = child->tgid;
	if (from != to && (bpf_map_lookup_elem(&processes, &from) || bpf_map_lookup_elem(&children, &from)))
		bpf_map_update_elem(&children, &to, &from, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task)
{
	executed(task);
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

/* ---- sockets ---- */

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
	u32 *run = running();
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
	u32 *run = running();
	if (run && *run)
		state_changed(sk, old, new);
	return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(on_destroy, struct sock *sk)
{
	return destroyed(sk);
}

/* Where the other one has run it finds nothing. */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(stand_in_destroy, struct sock *sk)
{
	return destroyed(sk);
}
