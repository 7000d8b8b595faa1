/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Payload into the ring: a record in its exact size up to 1 KiB, by way of private memory; above that in pieces of at most
 * 32 KiB straight into room that is reserved in five sizes (the ring reserves constant sizes only; a second copy costs more
 * than the slack).
 */
#pragma once
#include "calls.h"

#define SMALL 1024
#define LARGE 32768

/* Private to a program and CPU; in a map because the stack is too small and see `struct walk`. */
struct scratch {
	struct data_header header;
	u8 bytes[SMALL];
	struct walk walk;
	u64 unasked; /* bytes put in the ring since the backlog was last asked for */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2); /* by direction: the programs of the two may interrupt each other */
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/*
 * Whether to wake the reader. By backlog, not by producer position: it also slows a sender that outruns the reader, which
 * is then woken at every record. Below that it is asked for every 64 KiB (of 2 MiB) only: asking is not free.
 */
static __always_inline u64 wake(struct scratch *s, u32 n)
{
	s->unasked += n + sizeof s->header;
	if (s->unasked < wake_bytes / 32)
		return BPF_RB_NO_WAKEUP;
	if (bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= wake_bytes)
		return BPF_RB_FORCE_WAKEUP;
	s->unasked = 0;
	return BPF_RB_NO_WAKEUP;
}

/* Says that `n` bytes passed which are not in the ring. `reason` is counted even if the record does not fit. */
static __always_inline void missing(struct scratch *s, struct flow *f, u64 n, u8 reason)
{
	f->dropped[reason] += n;
	s->header.reason = reason;
	s->header.length = 0;
	s->header.covers = n;
	if (bpf_ringbuf_output(&ring, &s->header, sizeof s->header, wake(s, 0)))
		f->dropped_records++;
	else
		f->records++;
	s->header.reason = NOT_MISSING;
}

static __always_inline void ring_full(struct flow *f, u64 n)
{
	f->dropped[RING_FULL] += n;
	f->dropped_records++;
}

#define RESERVED_PIECE(SIZE)                                                                       \
	static __always_inline void piece_##SIZE(struct scratch *s, struct flow *f, u64 from, u32 n)  \
	{                                                                                             \
		struct {                                                                              \
			struct data_header header;                                                    \
			u8 bytes[SIZE];                                                               \
		} *r = bpf_ringbuf_reserve(&ring, sizeof *r, 0);                                      \
		if (!r) {                                                                             \
			ring_full(f, n);                                                              \
			return;                                                                       \
		}                                                                                     \
		barrier_var(n);                                                                       \
		if (n > SIZE)                                                                         \
			n = SIZE;                                                                     \
		if (bpf_probe_read_user(r->bytes, n, (void *)from)) {                                 \
			bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);                                     \
			missing(s, f, n, UNREADABLE);                                                 \
			return;                                                                       \
		}                                                                                     \
		s->header.length = n;                                                                 \
		s->header.covers = n;                                                                 \
		r->header = s->header;                                                                \
		bpf_ringbuf_submit(r, wake(s, n));                                                      \
		f->captured += n;                                                                     \
		f->records++;                                                                         \
	}

RESERVED_PIECE(2048)
RESERVED_PIECE(4096)
RESERVED_PIECE(8192)
RESERVED_PIECE(16384)
RESERVED_PIECE(LARGE)

static __always_inline void piece_small(struct scratch *s, struct flow *f, u64 from, u32 n)
{
	barrier_var(n);
	if (n > SMALL)
		n = SMALL;
	if (bpf_probe_read_user(s->bytes, n, (void *)from)) {
		missing(s, f, n, UNREADABLE);
		return;
	}
	s->header.length = n;
	s->header.covers = n;
	if (bpf_ringbuf_output(&ring, &s->header, sizeof s->header + n, wake(s, n))) {
		ring_full(f, n);
		return;
	}
	f->captured += n;
	f->records++;
}

struct copy {
	struct scratch *s;
	struct flow *f;
};

/* The next message of a vector: only at system call exit, when the kernel has written all lengths. */
static __always_inline int next_message(struct scratch *s)
{
	struct walk *w = &s->walk;
	u32 length = 0;

	if (!w->message_count || bpf_probe_read_user(&length, 4, (void *)(w->messages + MMSGHDR_LENGTH)) ||
	    !walk_message(w, w->messages))
		return 0;
	w->messages += MMSGHDR_SIZE;
	w->message_count--;
	w->message_left = length;
	s->header.flags |= CALL_START;
	return 1;
}

/* One piece. Returns 1 when there is nothing left to do. */
static __always_inline long copy_step(struct copy *c)
{
	struct scratch *s = c->s;
	struct walk *w = &s->walk;
	u64 n;

	if (!w->left)
		return 1;
	if (!w->message_left)
		return !next_message(s);
	if (!w->segment) {
		struct user_iovec v;
		if (!w->iovs || bpf_probe_read_user(&v, sizeof v, (void *)w->iov))
			return 1;
		w->iov += sizeof v;
		w->iovs--;
		w->base = v.base;
		w->segment = v.length;
		if (!w->segment)
			return 0;
	}
	n = w->segment;
	if (n > w->message_left)
		n = w->message_left;
	if (n > w->left)
		n = w->left;
	if (n > LARGE)
		n = LARGE;
	s->header.offset = w->offset;
	if (n <= SMALL)
		piece_small(s, c->f, w->base, n);
	else if (n <= 2048)
		piece_2048(s, c->f, w->base, n);
	else if (n <= 4096)
		piece_4096(s, c->f, w->base, n);
	else if (n <= 8192)
		piece_8192(s, c->f, w->base, n);
	else if (n <= 16384)
		piece_16384(s, c->f, w->base, n);
	else
		piece_LARGE(s, c->f, w->base, n);
	s->header.flags &= ~CALL_START;
	w->base += n;
	w->segment -= n;
	w->left -= n;
	w->message_left -= n;
	w->offset += n;
	return 0;
}

static long copy_loop(u32 i, struct copy *c)
{
	return copy_step(c);
}

/* Copies what the walk leads to; what it does not lead to is unreadable. */
static __always_inline void copy(struct scratch *s, struct flow *f)
{
	struct copy c = { s, f };

	if (!copy_step(&c) && s->walk.left)
		bpf_loop(1 << 20, copy_loop, &c, 0);
	if (s->walk.left) {
		s->header.offset = s->walk.offset;
		missing(s, f, s->walk.left, UNREADABLE);
	}
}
