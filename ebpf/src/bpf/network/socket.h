/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * State of a socket by `struct sock *`, its stream offsets, and the notices about it.
 *
 * Stream offset 0 of a direction is its first payload byte. The kernel keeps 64-bit totals beside the 32-bit sequence
 * numbers, so `rcv_nxt - bytes_received` and `snd_una - bytes_acked` give the sequence number of offset 0 at any time
 * in a connection's life; `bytes_acked` also counts the SYN of the side that connected.
 */
#pragma once
#include "network.h"
#include "../reader.h"

#define IPPROTO_TCP 6
#define SOCK_STREAM 1
#define AF_INET 2
#define AF_INET6 10
#define ECONNRESET 104
#define EPIPE 32
#define SOCK_DONE_BIT (1UL << 1) /* enum sock_flags: the peer's FIN arrived */
#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_SYN_RECV 3
#define TCP_FIN_WAIT1 4
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8
#define TCP_LAST_ACK 9
#define TCP_LISTEN 10

#define TCP(sk, field) BPF_CORE_READ((struct tcp_sock *)(sk), field)

static __always_inline u32 *is_state_running(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&state_running, &zero);
}

static __always_inline u64 new_id(void)
{
	return __sync_fetch_and_add(&globals.last_id, 1) + 1;
}

static __always_inline u32 netns_of(const struct sock *sk)
{
	return BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
}

static __always_inline u32 position(const void *sk, u32 dir)
{
	return dir == SENT ? TCP(sk, write_seq) : TCP(sk, copied_seq);
}

/* Whether `seq` includes the sequence number of a FIN, which is not payload. */
static __always_inline u32 past_fin(const struct sock *sk, const struct socket_state *st, u32 dir, u32 seq)
{
	if (dir == SENT)
		return st->fin_sent;
	return (BPF_CORE_READ(sk, __sk_common.skc_flags) & SOCK_DONE_BIT) && seq == TCP(sk, rcv_nxt);
}

/* Stream offset of `seq`, which lies up to 3 GiB after the offset `near`, or before it because of a race. */
static __always_inline u64 offset_of(const struct socket_state *st, u32 dir, u32 seq, u64 near)
{
	u32 ahead = seq - (st->base[dir] + (u32)near);
	return ahead > 0xC0000000u ? near : near + ahead;
}

/* Current offset of the stream; `st->next` is the offset accounted for. */
static __always_inline u64 offset_now(const struct sock *sk, const struct socket_state *st, u32 dir)
{
	u64 known = st->next[dir];
	u32 seq = position(sk, dir);
	u64 now = offset_of(st, dir, seq, known);
	if (now > known && past_fin(sk, st, dir, seq))
		now--;
	return now;
}

static __always_inline void read_addresses(const struct sock *sk, struct socket_state *st)
{
	st->family = BPF_CORE_READ(sk, __sk_common.skc_family);
	st->netns = netns_of(sk);
	st->local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
	st->remote_port = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
	if (st->family == AF_INET6) {
		BPF_CORE_READ_INTO(&st->local, sk, __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&st->remote, sk, __sk_common.skc_v6_daddr);
	} else {
		__be32 local = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
		__be32 remote = BPF_CORE_READ(sk, __sk_common.skc_daddr);
		__builtin_memcpy(st->local, &local, 4);
		__builtin_memcpy(st->remote, &remote, 4);
	}
}

/* 0 while the socket has no file: before accept() returned it, and for sockets of the kernel itself. */
static __always_inline u64 inode_of(const struct sock *sk)
{
	return BPF_CORE_READ(sk, sk_socket, file, f_inode, i_ino);
}

/* A 64-bit total and the sequence number that advances with it. */
struct stream_total {
	u64 bytes;
	u32 seq;
};

/* Without the lock of the socket the two may be from before and after a segment: read until both are unchanged. */
#define READ_TOTAL(t, sk, BYTES, SEQ)                                                              \
	for (int i = 0; i < 4; i++) {                                                              \
		(t)->bytes = TCP(sk, BYTES);                                                       \
		(t)->seq = TCP(sk, SEQ);                                                           \
		if ((t)->bytes == TCP(sk, BYTES) && (t)->seq == TCP(sk, SEQ))                      \
			break;                                                                     \
	}

/* Sequence number of offset 0 of the sent bytes. */
static __always_inline u32 read_sent_base(const struct sock *sk, u8 role, struct stream_total *acked)
{
	READ_TOTAL(acked, sk, bytes_acked, snd_una)
	acked->bytes -= role == ROLE_INITIATOR;
	return acked->seq - (u32)acked->bytes;
}

/* Sets the sequence numbers of stream offset 0; `totals` are the received bytes and the acknowledged sent bytes. */
static __always_inline void read_bases(const struct sock *sk, struct socket_state *st, struct stream_total totals[2])
{
	READ_TOTAL(&totals[RECEIVED], sk, bytes_received, rcv_nxt)
	st->base[RECEIVED] = totals[RECEIVED].seq - (u32)totals[RECEIVED].bytes;
	st->base[SENT] = read_sent_base(sk, st->role, &totals[SENT]);
}

/*
 * Whether the socket no longer holds the connection of `st`: it was disconnected, or its destruction was missed and its
 * memory is reused. Not every kernel runs programs in every context: that of a Firecracker guest was seen to run none while
 * process 1 is the current task, in softirq neither, and not to count them as missed.
 */
static __always_inline int is_other_connection(const struct sock *sk, const struct socket_state *st)
{
	struct stream_total acked;

	return read_sent_base(sk, st->role, &acked) != st->base[SENT];
}

/*
 * Role of a socket that was established before it was tracked and whose port has no known listener, by whether the
 * totals include a SYN: payload sent for the first time spans offset 0 to snd_nxt (less a FIN), without a SYN.
 */
static __always_inline u8 infer_role(const struct sock *sk)
{
	u32 first = TCP(sk, snd_una) - (u32)TCP(sk, bytes_acked);
	u32 payload = (u32)(TCP(sk, bytes_sent) - TCP(sk, bytes_retrans));
	u32 start = TCP(sk, snd_nxt) - payload;
	if (TCP(sk, bytes_acked) == 0 || start == first)
		return ROLE_RESPONDER;
	return start == first + 1 ? ROLE_INITIATOR : ROLE_UNKNOWN;
}

static __always_inline void fill_opened_notice(struct notice *n, const struct socket_state *st)
{
	n->kind = R_OPENED;
	n->role = st->role;
	n->pid = st->pid;
	n->socket = st->id;
	n->time = st->opened;
	n->inode = st->inode;
	n->sent = st->first[SENT];
	n->received = st->first[RECEIVED];
	n->netns = st->netns;
	n->local_port = st->local_port;
	n->remote_port = st->remote_port;
	n->family = st->family;
	__builtin_memcpy(n->local, st->local, 16);
	__builtin_memcpy(n->remote, st->remote, 16);
}

static const struct overflow_notice empty_overflow;

/* Stores a notice that must not be lost while the ring is full. The value is filled in place because it does not fit on
 * the stack; user space waits for `last.kind`. */
static __always_inline void store_overflow(const struct socket_state *opened, const struct notice *last)
{
	struct overflow_notice *o;
	u64 key = new_id();

	if (bpf_map_update_elem(&overflow_notices, &key, &empty_overflow, BPF_ANY) || !(o = bpf_map_lookup_elem(&overflow_notices, &key))) {
		__sync_fetch_and_add(&globals.lost_notices, 1);
		return;
	}
	if (opened)
		fill_opened_notice(&o->opened, opened);
	o->last = *last;
	__sync_fetch_and_add(&globals.overflowed, 1);
}

static __always_inline long emit(struct notice *n)
{
	return bpf_ringbuf_output(&ring, n, sizeof *n, wake_flags(0));
}

static __always_inline void emit_or_store(struct notice *n)
{
	if (emit(n))
		store_overflow(0, n);
}

/* Reports the socket to user space, once. User space cannot use records of an unknown socket: until this succeeds, the
 * payload of the socket is counted as dropped. */
static __noinline int report_opened(struct socket_state *st)
{
	struct notice n = {};
	if (!st)
		return 0;
	fill_opened_notice(&n, st);
	if (emit(&n))
		return 0;
	st->reported = 1;
	return 1;
}

/* Reports the inode of an accepted socket at its first I/O: the kernel assigns it after the socket was opened. */
static __noinline int report_inode(const struct sock *sk, struct socket_state *st)
{
	struct notice n = {};
	if (!st)
		return 0;
	st->inode_reported = 1;
	st->inode = inode_of(sk);
	if (!st->inode)
		return 0;
	n.kind = R_INODE;
	n.socket = st->id;
	n.inode = st->inode;
	n.time = bpf_ktime_get_ns();
	if (emit(&n))
		st->inode_reported = 0;
	return 0;
}

/* Whether a process that listens on the port becomes a watched one. */
static __always_inline int is_port_watched(u32 netns, u16 port)
{
	struct port_key key = { .netns = netns, .port = port };
	if (bpf_map_lookup_elem(&watched_ports, &key))
		return 1;
	key.netns = 0;
	return bpf_map_lookup_elem(&watched_ports, &key) != 0;
}

/* Whether connections that `pid` accepts on this port are captured. */
static __always_inline int is_port_captured(u32 pid, u32 netns, u16 port)
{
	u16 *only = bpf_map_lookup_elem(&port_filters, &pid);
	return !only || *only == port || is_port_watched(netns, port);
}

static __always_inline void read_listen_key(const struct sock *sk, struct listen_key *key)
{
	key->netns = netns_of(sk);
	key->port = BPF_CORE_READ(sk, __sk_common.skc_num);
	if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET6) {
		BPF_CORE_READ_INTO(&key->address, sk, __sk_common.skc_v6_rcv_saddr);
	} else {
		key->address[2] = __builtin_bswap32(0xffff);
		key->address[3] = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
	}
}

/* The listener that accepts connections to the local address of a socket: on this address, on any IPv4 address, on any
 * address. Other programs may listen on the same port at other addresses. */
static __always_inline struct listener *listener_of(const struct sock *sk)
{
	struct listen_key key = {};
	struct listener *l;

	read_listen_key(sk, &key);
	l = bpf_map_lookup_elem(&listeners, &key);
	if (!l && !key.address[0] && !key.address[1] && key.address[2] == __builtin_bswap32(0xffff)) {
		key.address[3] = 0;
		l = bpf_map_lookup_elem(&listeners, &key);
	}
	if (!l) {
		__builtin_memset(key.address, 0, sizeof key.address);
		l = bpf_map_lookup_elem(&listeners, &key);
	}
	return l;
}

/* Counts one more socket of a process; returns 0 if it has too many. */
static __always_inline int count_socket(u32 pid)
{
	u32 none = 0, *count = bpf_map_lookup_elem(&socket_counts, &pid);

	if (!count) {
		bpf_map_update_elem(&socket_counts, &pid, &none, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&socket_counts, &pid);
	}
	if (!count || *count >= MAX_SOCKETS_OF_PROCESS)
		return 0;
	__sync_fetch_and_add(count, 1);
	return 1;
}

static __always_inline void uncount_socket(u32 pid)
{
	u32 *count = bpf_map_lookup_elem(&socket_counts, &pid);

	/* The count starts anew when a process is watched again. */
	if (count && *count)
		__sync_fetch_and_add(count, -1);
}

/* Begins to track a socket that is not tracked. Returns 0 if there is no entry left for it. */
static __always_inline struct socket_state *put_state(const struct sock *sk, struct socket_state *st)
{
	u64 key = (u64)sk;

	if (!count_socket(st->pid))
		return 0;
	if (bpf_map_update_elem(&sockets, &key, st, BPF_ANY)) {
		uncount_socket(st->pid);
		return 0;
	}
	return bpf_map_lookup_elem(&sockets, &key);
}

static __always_inline void delete_state(const struct sock *sk, const struct socket_state *st)
{
	u64 key = (u64)sk;

	uncount_socket(st->pid);
	bpf_map_delete_elem(&sockets, &key);
}

/*
 * A number of the current cgroup that differs between containers whether their cgroups are of version 1 or 2: with version 1,
 * the cgroup of version 2 is the same for all of them, and that of the memory controller is not.
 */
static __always_inline u64 current_cgroup(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct cgroup_subsys_state *memory = 0;
	u64 id = bpf_get_current_cgroup_id(), at;

	if (bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id)) {
		at = bpf_core_field_offset(struct css_set, subsys);
		at += sizeof memory * bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
		bpf_probe_read_kernel(&memory, sizeof memory, (void *)BPF_CORE_READ(task, cgroups) + at);
	}
	return id + (memory ? BPF_CORE_READ(memory, cgroup, kn, id) : 0);
}

/*
 * Watches a process that user space has not asked for, because of its name or its port. Fails if the process is watched
 * already, or if too many others of its cgroup or of the host are unconfirmed. The process must be the current one.
 */
static __always_inline int watch_unconfirmed(u32 pid)
{
	static const struct account empty_account;
	u32 slot = current_cgroup() % CGROUP_SLOTS;
	u64 *count;

	if (bpf_map_lookup_elem(&processes, &pid))
		return -1;
	count = bpf_map_lookup_elem(&cgroup_slots, &slot);
	if (!count || *count >= MAX_UNCONFIRMED_OF_CGROUP || bpf_map_update_elem(&unconfirmed, &pid, &slot, BPF_NOEXIST)) {
		__sync_fetch_and_add(&globals.refused_processes, 1);
		return -1;
	}
	__sync_fetch_and_add(count, 1);
	if (bpf_map_update_elem(&processes, &pid, &empty_account, BPF_NOEXIST)) {
		__sync_fetch_and_add(count, -1);
		bpf_map_delete_elem(&unconfirmed, &pid);
		return -1;
	}
	return 0;
}

/* Initialises the state of an established connection. */
static __always_inline void begin_established(const struct sock *sk, struct socket_state *st, struct stream_total totals[2])
{
	read_addresses(sk, st);
	read_bases(sk, st, totals);
	st->inode = inode_of(sk);
	st->established = 1;
	st->opened = bpf_ktime_get_ns();
}

/*
 * Initialises the state of a connection whose opening was not observed: it is older than the probe, or the kernel skipped
 * the run of the program (it skips a run that would interrupt another run of the same program). `n` bytes have just been
 * transferred in direction `dir`; capture begins with them.
 */
static __always_inline void begin_midstream(const struct sock *sk, struct socket_state *st, u32 dir, u32 n)
{
	struct stream_total totals[2] = {};
	u64 sent, received;

	begin_established(sk, st, totals);
	/* From the 64-bit totals, as more than 4 GiB may have passed; the difference of the sequence numbers is small. */
	received = totals[RECEIVED].bytes - (s64)(s32)(totals[RECEIVED].seq - TCP(sk, copied_seq));
	sent = totals[SENT].bytes + (s64)(s32)(TCP(sk, write_seq) - totals[SENT].seq);
	if (received && past_fin(sk, st, RECEIVED, TCP(sk, copied_seq)))
		received--;
	if (dir == RECEIVED)
		received = received > n ? received - n : 0;
	else
		sent = sent > n ? sent - n : 0;
	st->next[SENT] = st->first[SENT] = sent;
	st->next[RECEIVED] = st->first[RECEIVED] = received;
}

/* The same for a state that exists since connect(). */
static __noinline int begin_midstream_state(const struct sock *sk, struct socket_state *st, u32 dir, u32 n)
{
	if (st)
		begin_midstream(sk, st, dir, n);
	return 0;
}

/* Begins to track a socket that a watched process uses. */
static __noinline struct socket_state *track_existing(const struct sock *sk, u32 pid, u32 dir, u32 n)
{
	struct socket_state st = {};

	if (!inode_of(sk)) /* a socket of the kernel, such as of NFS: its bytes are in no buffer of the process */
		return 0;
	st.id = new_id();
	st.pid = pid;
	st.role = listener_of(sk) ? ROLE_RESPONDER : infer_role(sk);
	begin_midstream(sk, &st, dir, n);
	if (st.role == ROLE_RESPONDER && !is_port_captured(pid, st.netns, st.local_port)) {
		st.muted = 1;
		st.verdict = LEAVE_ALONE;
	}
	return put_state(sk, &st);
}

/* Ends a connection: accounts for bytes that bypassed the programs at its end and reports the final offsets. `is_reused`:
 * the positions of the socket belong to another connection, see `is_other_connection`. */
static __noinline int report_closed(const struct sock *sk, struct socket_state *st, u32 is_reused)
{
	struct notice n = {};
	struct account *a;
	u64 sent, received, tail;

	if (!st || !st->established)
		return 0;
	sent = st->last_sent ? st->last_sent - 1 : is_reused ? st->next[SENT] : offset_now(sk, st, SENT);
	if (sent < st->next[SENT])
		sent = st->next[SENT];
	received = is_reused ? st->next[RECEIVED] : offset_now(sk, st, RECEIVED);
	if (st->verdict != LEAVE_ALONE) {
		tail = sent - st->next[SENT] + received - st->next[RECEIVED];
		a = bpf_map_lookup_elem(&processes, &st->pid);
		if (a)
			a->bypassed_at_close += tail;
	}
	if (st->muted)
		return 0;
	n.kind = R_CLOSED;
	n.closed_by = st->closed_by;
	n.pid = st->pid;
	n.socket = st->id;
	n.time = bpf_ktime_get_ns();
	n.sent = sent;
	n.received = received;
	n.inode = st->inode;
	if (st->reported || report_opened(st))
		emit_or_store(&n);
	else
		store_overflow(st, &n);
	return 0;
}
