/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Copies payloads of any length: whole chunks in records of their own, the rest in the event record. */
#pragma once
#include "memory.h"
#include "../reader.h"

struct chunk {
	struct chunk_header header;
	u8 bytes[CHUNK];
};

/* A payload; `read.left` is not used. */
struct payload {
	struct read read;
	u32 chunks; /* delivered */
};

static __always_inline struct chunk *reserve_chunk(struct payload *p)
{
	struct chunk *chunk = bpf_ringbuf_reserve(&ring, sizeof *chunk, 0);

	if (!chunk)
		p->read.flags |= DATA_RING_FULL;
	return chunk;
}

static __always_inline void submit_chunk(struct payload *p, struct chunk *chunk)
{
	struct scratch *s = p->read.s;

	chunk->header.kind = R_CHUNK;
	chunk->header.slot = s->event.slot;
	chunk->header.argument = s->argument;
	chunk->header.pad = 0;
	chunk->header.number = p->chunks;
	chunk->header.time = s->event.time;
	bpf_ringbuf_submit(chunk, wake_flags());
	p->chunks++;
	p->read.from += CHUNK;
}

/* Copies a chunk. Returns 1 at the end. */
static __always_inline long copy_chunk(struct payload *p, const bool sleepable)
{
	struct scratch *s = p->read.s;
	struct read read = { .s = s, .from = p->read.from, .left = CHUNK };
	u32 used = s->used;
	struct chunk *chunk = reserve_chunk(p);

	if (!chunk)
		return 1;
	if (!bpf_probe_read_user(chunk->bytes, CHUNK, (void *)p->read.from)) {
		submit_chunk(p, chunk);
		return 0;
	}
	bpf_ringbuf_discard(chunk, BPF_RB_NO_WAKEUP);
	read_bytes(&read, sleepable);
	if (read.flags) {
		/* What could be read remains as the rest of the payload. */
		p->read.flags |= read.flags;
		return 1;
	}
	s->used = used;
	barrier_var(used);
	if (used > MAX_BODY)
		return 1;
	chunk = reserve_chunk(p);
	if (!chunk)
		return 1;
	if (bpf_probe_read_kernel(chunk->bytes, CHUNK, s->body + used)) {
		bpf_ringbuf_discard(chunk, BPF_RB_NO_WAKEUP);
		p->read.flags |= DATA_UNREADABLE;
		return 1;
	}
	submit_chunk(p, chunk);
	return 0;
}

static long copy_chunk_sleepable(u32 i, struct payload *p)
{
	return copy_chunk(p, true);
}

static long copy_chunk_atomic(u32 i, struct payload *p)
{
	return copy_chunk(p, false);
}

/* Copies `length` bytes, at most `max_payload`. */
static __always_inline void copy_payload(struct payload *p, u64 length, const bool sleepable)
{
	u32 flags = 0;

	if (length > max_payload) {
		length = max_payload;
		flags = DATA_TRUNCATED;
	}
	if (length >= CHUNK) {
		if (p->read.s->used > MAX_BODY) {
			p->read.flags |= DATA_TRUNCATED;
			return;
		}
		if (sleepable)
			bpf_loop(length / CHUNK, copy_chunk_sleepable, p, 0);
		else
			bpf_loop(length / CHUNK, copy_chunk_atomic, p, 0);
	}
	if (!p->read.flags) {
		p->read.left = length % CHUNK;
		read_bytes(&p->read, sleepable);
	}
	/* Only if it is what stopped the copy. */
	if (!p->read.flags)
		p->read.flags = flags;
}
