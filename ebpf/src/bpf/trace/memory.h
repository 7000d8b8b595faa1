/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Reads memory of the process. Each read is tried without page faults first. If that fails, a sleepable program reads with
 * page faults, so that pages that the process has not touched yet, or that are swapped out, are read, too; both then read
 * page by page, so that exactly what can be read is.
 *
 * Functions are inlined into a sleepable and an atomic program, hence the constant `sleepable`.
 *
 * Reads are into `body` of a scratch, from its offset `used` on. What is left to do is in `read` of the scratch, not on the
 * stack: see `struct scratch`.
 */
#pragma once
#include "trace.h"

#ifndef barrier_var
#define barrier_var(var) asm volatile("" : "+r"(var))
#endif

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
static __always_inline long read_page(struct scratch *s, const bool sleepable)
{
	u32 n = PAGE - (s->read.from & (PAGE - 1)), at = s->used;
	void *to;

	if (n > s->read.left)
		n = s->read.left;
	if (!n || at > MAX_BODY + MAX_READ)
		return 1;
	barrier_var(at);
	if (at > MAX_BODY + MAX_READ)
		return 1;
	barrier_var(n);
	if (n > PAGE)
		return 1;
	to = s->body + at;
	if (sleepable ? bpf_copy_from_user(to, n, (void *)s->read.from) : bpf_probe_read_user(to, n, (void *)s->read.from)) {
		s->read.flags |= DATA_UNREADABLE;
		return 1;
	}
	s->used += n;
	s->read.from += n;
	s->read.left -= n;
	return 0;
}

static long read_page_sleepable(u32 i, struct scratch **s)
{
	return read_page(*s, true);
}

static long read_page_atomic(u32 i, struct scratch **s)
{
	return read_page(*s, false);
}

/* Reads `left` bytes, at most MAX_READ. */
static __always_inline void read_bytes(struct scratch *s, const bool sleepable)
{
	u32 n = s->read.left, at = s->used;

	barrier_var(at);
	if (at > MAX_BODY) {
		s->read.flags |= DATA_TRUNCATED;
		return;
	}
	barrier_var(n);
	if (n > MAX_READ)
		n = MAX_READ;
	if (!bpf_probe_read_user(s->body + at, n, (void *)s->read.from)) {
		s->used = at + n;
		s->read.left = 0;
		return;
	}
	if (sleepable)
		bpf_loop(MAX_READ / PAGE + 1, read_page_sleepable, &s, 0);
	else
		bpf_loop(MAX_READ / PAGE + 1, read_page_atomic, &s, 0);
}

/* Reads at most `n` bytes of a text. Returns 1 at its end, also if it is not readable, and -1 if that is not known. */
static __always_inline long read_text_piece(struct scratch *s, u32 n)
{
	u32 at = s->used;
	u8 last = 0;
	long length;

	barrier_var(at);
	if (at > MAX_BODY + MAX_TEXT)
		return 1;
	barrier_var(n);
	if (!n || n > MAX_TEXT + 1)
		return 1;
	length = bpf_probe_read_user_str(s->body + at, n, (void *)s->read.from);
	if (length < 0)
		return -1;
	if (length < n) {
		/* The helper counts the NUL. */
		s->used = at + (length ? length - 1 : 0);
		return 1;
	}
	/* The helper has put a NUL in place of the last byte, or that is one. */
	if (bpf_probe_read_user(&last, 1, (void *)(s->read.from + n - 1)))
		return -1;
	at += n - 1;
	if (last && n < s->read.left) {
		barrier_var(at);
		if (at > MAX_BODY + MAX_READ)
			return 1;
		s->body[at++] = last;
	} else if (last) {
		s->read.flags |= DATA_TRUNCATED;
	}
	s->used = at;
	s->read.from += n;
	s->read.left -= n;
	return !last || !s->read.left;
}

/* The next bytes of a text up to the end of a page. Returns 1 at the end. */
static __always_inline long read_text_page(struct scratch *s, const bool sleepable)
{
	u32 n = PAGE - (s->read.from & (PAGE - 1));
	u8 byte;
	long end;

	if (n > s->read.left)
		n = s->read.left;
	/* Faults the page in. */
	if (sleepable && bpf_copy_from_user(&byte, 1, (void *)s->read.from)) {
		s->read.flags |= DATA_UNREADABLE;
		return 1;
	}
	end = read_text_piece(s, n);
	if (end < 0)
		s->read.flags |= DATA_UNREADABLE;
	return end != 0;
}

static long read_text_page_sleepable(u32 i, struct scratch **s)
{
	return read_text_page(*s, true);
}

static long read_text_page_atomic(u32 i, struct scratch **s)
{
	return read_text_page(*s, false);
}

/* Reads a text up to its NUL, at most `max_string` bytes. */
static __always_inline void read_text(struct scratch *s, const bool sleepable)
{
	if (s->used > MAX_BODY) {
		s->read.flags |= DATA_TRUNCATED;
		return;
	}
	/* One more, for the NUL. */
	s->read.left = max_string + 1;
	if (read_text_piece(s, s->read.left) >= 0)
		return;
	if (sleepable)
		bpf_loop(MAX_TEXT / PAGE + 2, read_text_page_sleepable, &s, 0);
	else
		bpf_loop(MAX_TEXT / PAGE + 2, read_text_page_atomic, &s, 0);
}
