/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Copies payloads of any length: whole chunks in records of their own, the rest in the event record. */
#pragma once
#include "memory.h"
#include "../reader.h"

struct chunk {
	struct chunk_header header;
	u8 bytes[CHUNK];
};

static __always_inline struct chunk *reserve_chunk(struct scratch *s)
{
	struct chunk *chunk = bpf_ringbuf_reserve(&ring, sizeof *chunk, 0);

	if (!chunk)
		s->payload.flags |= DATA_RING_FULL;
	return chunk;
}

static __always_inline void submit_chunk(struct scratch *s, struct chunk *chunk)
{
	chunk->header.kind = R_CHUNK;
	chunk->header.slot = s->event.slot;
	chunk->header.argument = s->argument;
	chunk->header.pad = 0;
	chunk->header.number = s->payload.chunks;
	chunk->header.time = s->event.time;
	bpf_ringbuf_submit(chunk, wake_flags(1));
	s->payload.chunks++;
	s->payload.from += CHUNK;
}

/* Copies a chunk. Returns 1 at the end. */
static __always_inline long copy_chunk(struct scratch *s, const bool sleepable)
{
	struct chunk *chunk = reserve_chunk(s);
	u32 used;

	if (!chunk)
		return 1;
	if (!bpf_probe_read_user(chunk->bytes, CHUNK, (void *)s->payload.from)) {
		submit_chunk(s, chunk);
		return 0;
	}
	bpf_ringbuf_discard(chunk, BPF_RB_NO_WAKEUP);
	s->payload.used = s->used;
	s->read.from = s->payload.from;
	s->read.left = CHUNK;
	s->read.flags = 0;
	read_bytes(s, sleepable);
	if (s->read.flags) {
		/* What could be read remains as the rest of the payload. */
		s->payload.flags |= s->read.flags;
		return 1;
	}
	used = s->payload.used;
	s->used = used;
	barrier_var(used);
	if (used > MAX_BODY)
		return 1;
	chunk = reserve_chunk(s);
	if (!chunk)
		return 1;
	if (bpf_probe_read_kernel(chunk->bytes, CHUNK, s->body + used)) {
		bpf_ringbuf_discard(chunk, BPF_RB_NO_WAKEUP);
		s->payload.flags |= DATA_UNREADABLE;
		return 1;
	}
	submit_chunk(s, chunk);
	return 0;
}

static long copy_chunk_sleepable(u32 i, struct scratch **s)
{
	return copy_chunk(*s, true);
}

static long copy_chunk_atomic(u32 i, struct scratch **s)
{
	return copy_chunk(*s, false);
}

/* Copies `length` bytes from `payload.from` on, at most `limit`. */
static __always_inline void copy_payload(struct scratch *s, u64 length, u64 limit, const bool sleepable)
{
	s->payload.limit_flags = 0;
	if (length > limit) {
		length = limit;
		s->payload.limit_flags = DATA_TRUNCATED;
	}
	s->payload.rest = length % CHUNK;
	if (length >= CHUNK) {
		if (s->used > MAX_BODY) {
			s->payload.flags |= DATA_TRUNCATED;
			return;
		}
		if (sleepable)
			bpf_loop(length / CHUNK, copy_chunk_sleepable, &s, 0);
		else
			bpf_loop(length / CHUNK, copy_chunk_atomic, &s, 0);
	}
	if (!s->payload.flags) {
		s->read.from = s->payload.from;
		s->read.left = s->payload.rest;
		s->read.flags = 0;
		read_bytes(s, sleepable);
		s->payload.flags |= s->read.flags;
	}
	/* Only if it is what stopped the copy. */
	if (!s->payload.flags)
		s->payload.flags = s->payload.limit_flags;
}
