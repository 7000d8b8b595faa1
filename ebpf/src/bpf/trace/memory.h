/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Reads memory of the process. Each read is tried without page faults first. If that fails, a sleepable program reads with
 * page faults, so that pages that the process has not touched yet, or that are swapped out, are read, too; both then read
 * page by page, so that exactly what can be read is.
 *
 * Functions are inlined into a sleepable and an atomic program, hence the constant `sleepable`.
 */
#pragma once
#include "trace.h"

#ifndef barrier_var
#define barrier_var(var) asm volatile("" : "+r"(var))
#endif

/* A read into `body` of a scratch, from its offset `used` on. */
struct read {
	struct scratch *s;
	u64 from;
	u32 left; /* a text may be longer */
	u32 flags;
};

/* Reads a number of `size` bytes. */
static __always_inline int read_number(u64 *number, u32 size, u64 from, const bool sleepable)
{
	*number = 0;
	if (size > 8)
		return -1;
	if (!bpf_probe_read_user(number, size, (void *)from))
		return 0;
	return sleepable ? bpf_copy_from_user(number, size, (void *)from) : -1;
}

/* The next bytes up to the end of a page. Returns 1 at the end. */
static __always_inline long read_page(struct read *r, const bool sleepable)
{
	u32 n = PAGE - (r->from & (PAGE - 1)), at = r->s->used;
	void *to;

	if (n > r->left)
		n = r->left;
	if (!n || at > MAX_BODY + MAX_READ)
		return 1;
	barrier_var(at);
	if (at > MAX_BODY + MAX_READ)
		return 1;
	barrier_var(n);
	if (n > PAGE)
		return 1;
	to = r->s->body + at;
	if (sleepable ? bpf_copy_from_user(to, n, (void *)r->from) : bpf_probe_read_user(to, n, (void *)r->from)) {
		r->flags |= DATA_UNREADABLE;
		return 1;
	}
	r->s->used += n;
	r->from += n;
	r->left -= n;
	return 0;
}

static long read_page_sleepable(u32 i, struct read *r)
{
	return read_page(r, true);
}

static long read_page_atomic(u32 i, struct read *r)
{
	return read_page(r, false);
}

/* Reads `left` bytes, at most MAX_READ. */
static __always_inline void read_bytes(struct read *r, const bool sleepable)
{
	u32 n = r->left, at = r->s->used;

	barrier_var(at);
	if (at > MAX_BODY) {
		r->flags |= DATA_TRUNCATED;
		return;
	}
	barrier_var(n);
	if (n > MAX_READ)
		n = MAX_READ;
	if (!bpf_probe_read_user(r->s->body + at, n, (void *)r->from)) {
		r->s->used = at + n;
		r->left = 0;
		return;
	}
	if (sleepable)
		bpf_loop(MAX_READ / PAGE + 1, read_page_sleepable, r, 0);
	else
		bpf_loop(MAX_READ / PAGE + 1, read_page_atomic, r, 0);
}

/* Reads at most `n` bytes of a text. Returns 1 at its end, also if it is not readable, and -1 if that is not known. */
static __always_inline long read_text_piece(struct read *r, u32 n)
{
	u32 at = r->s->used;
	u8 last = 0;
	long length;

	barrier_var(at);
	if (at > MAX_BODY + MAX_TEXT)
		return 1;
	barrier_var(n);
	if (!n || n > MAX_TEXT + 1)
		return 1;
	length = bpf_probe_read_user_str(r->s->body + at, n, (void *)r->from);
	if (length < 0)
		return -1;
	if (length < n) {
		/* The helper counts the NUL. */
		r->s->used = at + (length ? length - 1 : 0);
		return 1;
	}
	/* The helper has put a NUL in place of the last byte, or that is one. */
	if (bpf_probe_read_user(&last, 1, (void *)(r->from + n - 1)))
		return -1;
	at += n - 1;
	if (last && n < r->left) {
		barrier_var(at);
		if (at > MAX_BODY + MAX_READ)
			return 1;
		r->s->body[at++] = last;
	} else if (last) {
		r->flags |= DATA_TRUNCATED;
	}
	r->s->used = at;
	r->from += n;
	r->left -= n;
	return !last || !r->left;
}

/* The next bytes of a text up to the end of a page. Returns 1 at the end. */
static __always_inline long read_text_page(struct read *r, const bool sleepable)
{
	u32 n = PAGE - (r->from & (PAGE - 1));
	u8 byte;
	long end;

	if (n > r->left)
		n = r->left;
	/* Faults the page in. */
	if (sleepable && bpf_copy_from_user(&byte, 1, (void *)r->from)) {
		r->flags |= DATA_UNREADABLE;
		return 1;
	}
	end = read_text_piece(r, n);
	if (end < 0)
		r->flags |= DATA_UNREADABLE;
	return end != 0;
}

static long read_text_page_sleepable(u32 i, struct read *r)
{
	return read_text_page(r, true);
}

static long read_text_page_atomic(u32 i, struct read *r)
{
	return read_text_page(r, false);
}

/* Reads a text up to its NUL, at most `max_string` bytes. */
static __always_inline void read_text(struct read *r, const bool sleepable)
{
	if (r->s->used > MAX_BODY) {
		r->flags |= DATA_TRUNCATED;
		return;
	}
	/* One more, for the NUL. */
	r->left = max_string + 1;
	if (read_text_piece(r, r->left) >= 0)
		return;
	if (sleepable)
		bpf_loop(MAX_TEXT / PAGE + 2, read_text_page_sleepable, r, 0);
	else
		bpf_loop(MAX_TEXT / PAGE + 2, read_text_page_atomic, r, 0);
}
