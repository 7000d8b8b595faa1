/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * A socket's life: its state by `struct sock *`, its stream offsets, and the notices about it.
 *
 * Stream offset 0 of a direction is its first payload byte. The kernel keeps 64-bit totals beside the 32-bit sequence
 * numbers, so `rcv_nxt - bytes_received` and `snd_una - bytes_acked` give the sequence number of offset 0 at any time
 * in a connection's life; `bytes_acked` also counts the SYN of the side that connected.
 */
#pragma once
#include "net.h"

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

static __always_inline u32 current_pid(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

static __always_inline u32 *running(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&runs, &zero);
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

/* Whether the sequence number in question has the one of a FIN behind it, which is not payload. */
static __always_inline u32 past_fin(const struct sock *sk, const struct socket_state *st, u32 dir, u32 seq)
{
	if (dir == SENT)
		return st->fin_sent;
	return (BPF_CORE_READ(sk, __sk_common.skc_flags) & SOCK_DONE_BIT) && seq == TCP(sk, rcv_nxt);
}

/* The stream offset of `seq`, which is near `near` (up to 3 GiB after it, or before it by a race). */
static __always_inline u64 offset_of(const struct socket_state *st, u32 dir, u32 seq, u64 near)
{
	u32 ahead = seq - (st->base[dir] + (u32)near);
	return ahead > 0xC0000000u ? near : near + ahead;
}

/* Where the stream stands now; `st->next` is where it was known to stand. */
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

/* 0 while the socket has no file, that is before accept() returned it, and for the kernel's own sockets. */
static __always_inline u64 inode_of(const struct sock *sk)
{
	return BPF_CORE_READ(sk, sk_socket, file, f_inode, i_ino);
}

/* A 64-bit total and the sequence number that moves with it. */
struct total {
	u64 bytes;
	u32 seq;
};

/* Without the socket's lock the two may be from before and after a segment: read until they stay. */
#define READ_TOTAL(t, sk, BYTES, SEQ)                                                              \
	for (int i = 0; i < 4; i++) {                                                              \
		(t)->bytes = TCP(sk, BYTES);                                                       \
		(t)->seq = TCP(sk, SEQ);                                                           \
		if ((t)->bytes == TCP(sk, BYTES) && (t)->seq == TCP(sk, SEQ))                      \
			break;                                                                     \
	}

/* Sets the sequence numbers of stream offset 0; `totals` are what was received and what was acknowledged of the sent. */
static __always_inline void read_bases(const struct sock *sk, struct socket_state *st, struct total totals[2])
{
	READ_TOTAL(&totals[RECEIVED], sk, bytes_received, rcv_nxt)
	READ_TOTAL(&totals[SENT], sk, bytes_acked, snd_una)
	totals[SENT].bytes -= st->role == ROLE_INITIATOR;
	st->base[RECEIVED] = totals[RECEIVED].seq - (u32)totals[RECEIVED].bytes;
	st->base[SENT] = totals[SENT].seq - (u32)totals[SENT].bytes;
}

/*
 * The role of a socket whose opening was not seen and whose port is not known to be listening: did we count a SYN?
 * Payload sent for the first time leads from offset 0 to snd_nxt (less a FIN), without a SYN.
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

static __always_inline void opened_notice(struct notice *n, const struct socket_state *st)
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

static const struct orphan no_orphan;

/* Notices that must not be lost wait in a table of their own when the ring is full. Filled in place: the stack has no
 * room for it; user space waits for `last.kind`. */
static __always_inline void keep_orphan(const struct socket_state *opened, const struct notice *last)
{
	struct orphan *o;
	u64 key = new_id();

	if (bpf_map_update_elem(&orphans, &key, &no_orphan, BPF_ANY) || !(o = bpf_map_lookup_elem(&orphans, &key))) {
		__sync_fetch_and_add(&globals.lost, 1);
		return;
	}
	if (opened)
		opened_notice(&o->opened, opened);
	o->last = *last;
	__sync_fetch_and_add(&globals.orphaned, 1);
}

static __always_inline long emit(struct notice *n)
{
	return bpf_ringbuf_output(&ring, n, sizeof *n, BPF_RB_NO_WAKEUP); /* the reader looks every 10 ms */
}

static __always_inline void emit_or_keep(struct notice *n)
{
	if (emit(n))
		keep_orphan(0, n);
}

/* Tells of the socket, once. User space can do nothing with records of a socket that it does not know: until this
 * succeeds, its data is counted as dropped. */
static __noinline int announce(struct socket_state *st)
{
	struct notice n = {};
	if (!st)
		return 0;
	opened_notice(&n, st);
	if (emit(&n))
		return 0;
	st->announced = 1;
	return 1;
}

/* An accepted socket gets its inode after it was opened: told at its first I/O. */
static __noinline int tell_inode(const struct sock *sk, struct socket_state *st)
{
	struct notice n = {};
	if (!st)
		return 0;
	st->inode_asked = 1;
	st->inode = inode_of(sk);
	if (!st->inode)
		return 0;
	n.kind = R_INODE;
	n.socket = st->id;
	n.inode = st->inode;
	n.time = bpf_ktime_get_ns();
	if (emit(&n))
		st->inode_asked = 0;
	return 0;
}

/* Whether connections that `pid` accepts at this port are captured. */
static __always_inline int wanted_port(u32 pid, u32 netns, u16 port)
{
	struct listen_key key = { .netns = netns, .port = port };
	u16 *only = bpf_map_lookup_elem(&filters, &pid);
	if (!only || *only == port)
		return 1;
	if (bpf_map_lookup_elem(&ports, &key))
		return 1;
	key.netns = 0;
	return bpf_map_lookup_elem(&ports, &key) != 0;
}

static __always_inline struct socket_state *put_state(const struct sock *sk, struct socket_state *st)
{
	u64 key = (u64)sk;
	if (bpf_map_update_elem(&sockets, &key, st, BPF_ANY))
		return 0;
	return bpf_map_lookup_elem(&sockets, &key);
}

/* A connection that stands: offsets begin where the streams are now. */
static __always_inline void begin(const struct sock *sk, struct socket_state *st, struct total totals[2])
{
	read_addresses(sk, st);
	read_bases(sk, st, totals);
	st->inode = inode_of(sk);
	st->established = 1;
	st->opened = bpf_ktime_get_ns();
}

/*
 * A connection whose beginning was not seen: the probe is younger than it, or the kernel skipped the run that was about
 * it (a run that would interrupt another of the same program is skipped). `n` bytes have just passed in direction
 * `dir`, and capture begins with them.
 */
static __always_inline void join(const struct sock *sk, struct socket_state *st, u32 dir, u32 n)
{
	struct total totals[2] = {};
	u64 sent, received;

	begin(sk, st, totals);
	/* From the 64-bit totals: these streams may be older than 4 GiB. What lies in between is small, either way. */
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

/* The same for a state that is there already, from connect() on. */
static __noinline int join_late(const struct sock *sk, struct socket_state *st, u32 dir, u32 n)
{
	if (st)
		join(sk, st, dir, n);
	return 0;
}

/* A socket that a watched process uses, without a state. */
static __noinline struct socket_state *adopt(const struct sock *sk, u32 pid, u32 dir, u32 n)
{
	struct socket_state st = {};
	struct listen_key key = {};
	struct listener *l;

	if (!inode_of(sk)) /* the kernel's own, such as NFS: its bytes are in no buffer of the process */
		return 0;
	st.id = new_id();
	st.pid = pid;
	key.netns = netns_of(sk);
	key.port = BPF_CORE_READ(sk, __sk_common.skc_num);
	l = bpf_map_lookup_elem(&listeners, &key);
	st.role = l ? ROLE_RESPONDER : infer_role(sk);
	join(sk, &st, dir, n);
	if (st.role == ROLE_RESPONDER && !wanted_port(pid, st.netns, st.local_port)) {
		st.silent = 1;
		st.verdict = LEAVE_ALONE;
	}
	return put_state(sk, &st);
}

/* The connection is over: what passed unseen at its end, the final offsets, the notice. `is_another`: the socket's positions
 * are those of another connection already. */
static __noinline int finish(const struct sock *sk, struct socket_state *st, u32 is_another)
{
	struct notice n = {};
	struct account *a;
	u64 sent, received, tail;

	if (!st || !st->established)
		return 0;
	sent = st->last_sent ? st->last_sent - 1 : is_another ? st->next[SENT] : offset_now(sk, st, SENT);
	if (sent < st->next[SENT])
		sent = st->next[SENT];
	received = is_another ? st->next[RECEIVED] : offset_now(sk, st, RECEIVED);
	if (st->verdict != LEAVE_ALONE) {
		tail = sent - st->next[SENT] + received - st->next[RECEIVED];
		a = bpf_map_lookup_elem(&processes, &st->pid);
		if (a)
			a->tail += tail;
	}
	if (st->silent)
		return 0;
	n.kind = R_CLOSED;
	n.by = st->by;
	n.pid = st->pid;
	n.socket = st->id;
	n.time = bpf_ktime_get_ns();
	n.sent = sent;
	n.received = received;
	n.inode = st->inode;
	if (st->announced || announce(st))
		emit_or_keep(&n);
	else
		keep_orphan(st, &n);
	return 0;
}
