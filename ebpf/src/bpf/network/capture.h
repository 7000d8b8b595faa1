/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Copies payload into the ring: up to 1 KiB as a record of its exact size, through private memory; above that in pieces of
 * at most 32 KiB directly into reserved records of five sizes (bpf_ringbuf_reserve takes constant sizes only; a second copy
 * costs more than the slack).
 */
#pragma once
#include "syscall.h"

#define MAX_SMALL_PIECE 1024
#define MAX_PIECE 32768

/* Private to a program and CPU; in a map because the stack is too small, see also `struct user_iov_iter`. */
struct scratch {
	struct data_header header;
	u8 bytes[MAX_SMALL_PIECE];
	struct user_iov_iter iter;
	u64 bytes_since_query; /* bytes put in the ring since the last query of its backlog */
};

/* Per-CPU array: Linux 4.6. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2); /* by direction: the programs of the two directions may preempt each other */
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* Flags of a submission of `n` bytes. */
static __always_inline u64 wake(struct scratch *s, u32 n)
{
	return wake_flags_of(&s->bytes_since_query, n + sizeof s->header);
}

/* Reports `n` bytes that are not in the ring. `reason` is counted even if the record does not fit. */
static __always_inline void report_missing(struct scratch *s, struct flow_counters *f, u64 n, u8 reason)
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

static __always_inline void count_ring_full(struct flow_counters *f, u64 n)
{
	f->dropped[RING_FULL] += n;
	f->dropped_records++;
}

#define RESERVED_PIECE(SIZE)                                                                       \
	static __always_inline void piece_##SIZE(struct scratch *s, struct flow_counters *f, u64 from, u32 n)  \
	{                                                                                             \
		struct {                                                                              \
			struct data_header header;                                                    \
			u8 bytes[SIZE];                                                               \
		} *r = bpf_ringbuf_reserve(&ring, sizeof *r, 0);                                      \
		if (!r) {                                                                             \
			count_ring_full(f, n);                                                              \
			return;                                                                       \
		}                                                                                     \
		barrier_var(n);                                                                       \
		if (n > SIZE)                                                                         \
			n = SIZE;                                                                     \
		if (bpf_probe_read_user(r->bytes, n, (void *)from)) {                                 \
			bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);                                     \
			report_missing(s, f, n, UNREADABLE);                                                 \
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
RESERVED_PIECE(MAX_PIECE)

static __always_inline void piece_small(struct scratch *s, struct flow_counters *f, u64 from, u32 n)
{
	barrier_var(n);
	if (n > MAX_SMALL_PIECE)
		n = MAX_SMALL_PIECE;
	if (bpf_probe_read_user(s->bytes, n, (void *)from)) {
		report_missing(s, f, n, UNREADABLE);
		return;
	}
	s->header.length = n;
	s->header.covers = n;
	if (bpf_ringbuf_output(&ring, &s->header, sizeof s->header + n, wake(s, n))) {
		count_ring_full(f, n);
		return;
	}
	f->captured += n;
	f->records++;
}

struct copy_ctx {
	struct scratch *s;
	struct flow_counters *f;
};

/* Advances to the next message of a vector; at system call exit only, when the kernel has written all lengths. */
static __always_inline int next_message(struct scratch *s)
{
	struct user_iov_iter *w = &s->iter;
	u32 length = 0;

	if (!w->message_count || bpf_probe_read_user(&length, 4, (void *)(w->messages + MMSGHDR_LENGTH)) ||
	    !iter_message(w, w->messages))
		return 0;
	w->messages += MMSGHDR_SIZE;
	w->message_count--;
	w->message_left = length;
	s->header.flags |= CALL_START;
	return 1;
}

/* Copies one piece. Returns 1 when nothing is left. */
static __always_inline long copy_step(struct copy_ctx *c)
{
	struct scratch *s = c->s;
	struct user_iov_iter *w = &s->iter;
	u64 n;

	if (!w->left)
		return 1;
	if (!w->message_left)
		return !next_message(s);
	if (!w->segment) {
		struct user_iovec v;
		if (!w->iovs || !w->iovs_left || bpf_probe_read_user(&v, sizeof v, (void *)w->iov))
			return 1;
		w->iov += sizeof v;
		w->iovs--;
		w->iovs_left--;
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
	if (n > MAX_PIECE)
		n = MAX_PIECE;
	s->header.offset = w->offset;
	if (n <= MAX_SMALL_PIECE)
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
		piece_MAX_PIECE(s, c->f, w->base, n);
	s->header.flags &= ~CALL_START;
	w->base += n;
	w->segment -= n;
	w->left -= n;
	w->message_left -= n;
	w->offset += n;
	return 0;
}

static long copy_next(u32 i, struct copy_ctx *c)
{
	return copy_step(c);
}

/* Copies the buffers of the iterator; bytes beyond them are reported as unreadable. */
static __always_inline void copy_payload(struct scratch *s, struct flow_counters *f)
{
	struct copy_ctx c = { s, f };

	if (!copy_step(&c) && s->iter.left)
		bpf_loop(1 << 20, copy_next, &c, 0);
	if (s->iter.left) {
		s->header.offset = s->iter.offset;
		report_missing(s, f, s->iter.left, UNREADABLE);
	}
}
