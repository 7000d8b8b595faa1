/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Life cycle of processes and sockets: watched processes, listening ports, and each connection from connect or accept to
 * its destruction.
 */
#pragma once
#include "socket.h"
#include "exec.h"

/* ---- processes ---- */

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	u32 from = tgid_of(parent), to = tgid_of(child);
	if (from != to && (bpf_map_lookup_elem(&processes, &from) || bpf_map_lookup_elem(&children, &from)))
		bpf_map_update_elem(&children, &to, &from, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task)
{
	handle_exec(task);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_process_exit, struct task_struct *task)
{
	u32 pid = tgid_of(task);
	if (task->pid == task->tgid)
		bpf_map_delete_elem(&children, &pid);
	return 0;
}

/* ---- sockets ---- */

/* Handles the start of a listening socket. On a watched port the process becomes a watched one immediately, so that its
 * first connection is captured. */
static __always_inline void handle_listen(const struct sock *sk)
{
	struct notice n = {};
	struct listen_key key = {};
	struct listener *l, fresh = {};
	u32 pid = current_tgid();

	if (!pid)
		return;
	read_listen_key(sk, &key);
	if (is_port_watched(key.netns, key.port)) {
		u16 port = key.port;
		if (!watch_unconfirmed(pid))
			bpf_map_update_elem(&port_filters, &pid, &port, BPF_NOEXIST);
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
	n.family = AF_INET6; /* of IPv4 as IPv4-mapped */
	__builtin_memcpy(n.local, key.address, sizeof n.local);
	n.time = bpf_ktime_get_ns();
	emit_or_store(&n);
}

static __always_inline void handle_listen_end(const struct sock *sk)
{
	struct listen_key key = {};
	struct listener *l;

	read_listen_key(sk, &key);
	l = bpf_map_lookup_elem(&listeners, &key);
	if (l && __sync_fetch_and_add(&l->count, -1) <= 1)
		bpf_map_delete_elem(&listeners, &key);
}

static __always_inline void handle_connect(const struct sock *sk)
{
	struct socket_state st = {};
	u32 pid = current_tgid();

	if (!bpf_map_lookup_elem(&processes, &pid))
		return;
	st.id = new_id();
	st.pid = pid;
	st.role = ROLE_INITIATOR;
	put_state(sk, &st);
}

static __always_inline void handle_accept(const struct sock *sk)
{
	struct listener *l = listener_of(sk);
	struct socket_state st = {}, *put;
	struct stream_total totals[2];

	if (!l)
		return;
	st.pid = l->pid;
	if (!bpf_map_lookup_elem(&processes, &st.pid)) /* no longer watched */
		return;
	st.id = new_id();
	st.role = ROLE_RESPONDER;
	begin_established(sk, &st, totals);
	if (!is_port_captured(st.pid, st.netns, st.local_port)) {
		st.muted = 1;
		st.verdict = LEAVE_ALONE;
	}
	put = put_state(sk, &st);
	if (put && !st.muted)
		report_opened(put);
}

static __noinline int handle_state_change(const struct sock *sk, int old, int new)
{
	struct socket_state *st;
	u64 key = (u64)sk;

	if (sk->sk_protocol != IPPROTO_TCP)
		return 0;
	if (new == TCP_LISTEN) {
		handle_listen(sk);
		return 0;
	}
	if (old == TCP_LISTEN) {
		if (new == TCP_CLOSE)
			handle_listen_end(sk);
		return 0;
	}
	st = bpf_map_lookup_elem(&sockets, &key);
	/* Another connection begins: the process connects again after a disconnect, or the memory is reused. */
	if (st && (new == TCP_SYN_SENT || (st->established && (new == TCP_ESTABLISHED || is_other_connection(sk, st))))) {
		report_closed(sk, st, 1);
		delete_state(sk, st);
		st = 0;
	}
	switch (new) {
	case TCP_SYN_SENT:
		handle_connect(sk);
		return 0;
	case TCP_ESTABLISHED:
		if (!st) {
			if (old == TCP_SYN_RECV)
				handle_accept(sk);
		} else if (!st->established) {
			struct stream_total totals[2];
			begin_established(sk, st, totals);
			report_opened(st);
		}
		return 0;
	case TCP_FIN_WAIT1:
		if (st) {
			st->fin_sent = 1;
			if (!st->closed_by)
				st->closed_by = BY_LOCAL;
		}
		return 0;
	case TCP_LAST_ACK:
		if (st)
			st->fin_sent = 1;
		return 0;
	case TCP_CLOSE_WAIT:
		if (st && !st->closed_by)
			st->closed_by = BY_REMOTE;
		return 0;
	case TCP_CLOSE:
		if (!st || !st->established)
			return 0;
		/* After this a disconnect may change the sequence numbers. */
		st->last_sent = offset_now(sk, st, SENT) + 1;
		if (!st->closed_by) {
			int error = sk->sk_err;
			st->closed_by = error == ECONNRESET || error == EPIPE ? BY_RESET : error ? BY_UNKNOWN : BY_LOCAL;
		}
		return 0;
	}
	return 0;
}

static __noinline int handle_destroy(const struct sock *sk)
{
	u64 key = (u64)sk;
	struct socket_state *st = bpf_map_lookup_elem(&sockets, &key);
	if (st) {
		report_closed(sk, st, is_other_connection(sk, st));
		delete_state(sk, st);
	}
	return 0;
}

/*
 * The kernel skips a run that would interrupt another run of the same program on the same CPU: a connection that ends in
 * softirq while the program handles the end of another one. on_state_nested handles exactly these skipped runs.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, const struct sock *sk, int old, int new)
{
	u32 *run = is_state_running();
	if (run)
		*run = 1;
	handle_state_change(sk, old, new);
	if (run)
		*run = 0;
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state_nested, const struct sock *sk, int old, int new)
{
	u32 *run = is_state_running();
	if (run && *run)
		handle_state_change(sk, old, new);
	return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(on_destroy, struct sock *sk)
{
	return handle_destroy(sk);
}

/* The same for tcp_destroy_sock. Where on_destroy has run, there is no state left. */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(on_destroy_nested, struct sock *sk)
{
	return handle_destroy(sk);
}

/* ---- released processes ---- */

static long forget_socket(void *map, u64 *key, struct socket_state *st, u32 *pid)
{
	if (st->pid == *pid)
		bpf_map_delete_elem(&sockets, key);
	return 0;
}

/* Forgets the sockets of process args[0]. Run by user space (BPF_PROG_TEST_RUN of raw tracepoints: Linux 5.10;
 * bpf_for_each_map_elem: 5.13). */
SEC("raw_tracepoint/forget_sockets")
int forget_sockets(u64 *args)
{
	u32 pid = args[0];

	bpf_for_each_map_elem(&sockets, forget_socket, &pid, 0);
	return 0;
}
