// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The tracepoint programs. A hit takes a slot, which says when it began and has memory for it, fetches the arguments as the
 * location says, and puts the event into the ring.
 *
 * The slot tells user space from when on events may still be on their way (see `src/trace/order.rs`).
 */
#include "payload.h"
#include "../pidns.h"

#define COUNT(counters, field) __sync_fetch_and_add(&(counters)->field, 1)

/* Takes a free slot, the first ones for each CPU being different. */
static __always_inline struct slot *take_slot(u32 *number)
{
	u32 first = bpf_get_smp_processor_id() * 4;
	struct slot *slot;
	u32 key;

	for (u32 i = 0; i < SLOTS; i++) {
		key = (first + i) % SLOTS;
		slot = bpf_map_lookup_elem(&slots, &key);
		if (slot && !*(volatile u64 *)&slot->time && !__sync_val_compare_and_swap(&slot->time, 0, STARTING)) {
			*number = key;
			return slot;
		}
	}
	return NULL;
}

/* Puts the value of an argument into its result. */
static __always_inline void fetch_value(struct scratch *s, struct argument *a, struct result *result,
					const bool sleepable)
{
	u64 value = a->number;
	u32 unused = 64 - 8 * (u32)a->size;

	result->value = 0;
	result->length = 0;
	result->chunks = 0;
	result->flags = 0;
	if (a->operand == OPERAND_UNSUPPORTED || unused >= 64) {
		result->flags = VALUE_UNSUPPORTED;
		return;
	}
	if (a->operand == OPERAND_REGISTER) {
		value = s->registers[a->base & 31] >> (a->shift & 63);
	} else if (a->operand == OPERAND_MEMORY) {
		if (a->base != NO_REGISTER)
			value += s->registers[a->base & 31];
		if (a->index != NO_REGISTER)
			value += s->registers[a->index & 31] * a->scale;
		result->value = value;
		if (read_number(&value, a->size, value, sleepable)) {
			result->flags = VALUE_UNREADABLE;
			return;
		}
	}
	value <<= unused;
	result->value = a->is_signed ? (u64)((s64)value >> unused) : value >> unused;
}

/* Puts what the value points to behind the results. */
static __always_inline void fetch_data(struct scratch *s, struct location *l, struct argument *a,
				       struct result *result, const bool sleepable)
{
	u32 number = a->length;
	struct result *length;

	if (a->fetch == FETCH_VALUE || result->flags)
		return;
	s->payload.from = result->value;
	s->payload.chunks = 0;
	s->payload.flags = 0;
	s->payload.begin = s->used;
	if (a->fetch == FETCH_STRING) {
		s->read.from = result->value;
		s->read.flags = 0;
		read_text(s, sleepable);
		s->payload.flags = s->read.flags;
	} else if (a->fetch == FETCH_BYTES) {
		copy_payload(s, number, number, sleepable);
	} else if (number < MAX_ARGUMENTS && number < l->count) {
		length = (struct result *)s->body + number;
		if (length->flags & (VALUE_UNSUPPORTED | VALUE_UNREADABLE) ||
		    (l->arguments[number].is_signed && (s64)length->value < 0))
			s->payload.flags = LENGTH_UNKNOWN;
		else
			copy_payload(s, length->value, max_payload, sleepable);
	}
	result->length = s->used - s->payload.begin;
	result->chunks = s->payload.chunks;
	result->flags = s->payload.flags;
}

struct hit {
	struct scratch *s;
	struct location *l;
};

static __always_inline long fetch_value_of(u32 i, struct hit *h, const bool sleepable)
{
	if (i >= MAX_ARGUMENTS)
		return 1;
	fetch_value(h->s, &h->l->arguments[i], (struct result *)h->s->body + i, sleepable);
	h->s->has_data |= h->l->arguments[i].fetch != FETCH_VALUE;
	return 0;
}

static __always_inline long fetch_data_of(u32 i, struct hit *h, const bool sleepable)
{
	struct result *result;

	if (i >= MAX_ARGUMENTS)
		return 1;
	result = (struct result *)h->s->body + i;
	h->s->argument = i;
	fetch_data(h->s, h->l, &h->l->arguments[i], result, sleepable);
	h->s->incomplete |= result->flags & DATA_RING_FULL;
	return 0;
}

static long fetch_value_sleepable(u32 i, struct hit *h)
{
	return fetch_value_of(i, h, true);
}

static long fetch_value_atomic(u32 i, struct hit *h)
{
	return fetch_value_of(i, h, false);
}

static long fetch_data_sleepable(u32 i, struct hit *h)
{
	return fetch_data_of(i, h, true);
}

static long fetch_data_atomic(u32 i, struct hit *h)
{
	return fetch_data_of(i, h, false);
}

/* Puts the event together. */
static __always_inline void capture(void *ctx, struct scratch *s, struct location *l, const bool sleepable)
{
	struct hit h = { .s = s, .l = l };
	u32 count = l->count;

	if (count > MAX_ARGUMENTS)
		count = MAX_ARGUMENTS;
	s->event.count = count;
	s->used = count * sizeof(struct result);
	s->has_data = 0;
	s->incomplete = 0;
	bpf_get_current_comm(s->event.comm, sizeof s->event.comm);
	if (bpf_probe_read_kernel(s->registers, SAVED_REGISTERS * 8, ctx))
		return;
	if (sleepable)
		bpf_loop(count, fetch_value_sleepable, &h, 0);
	else
		bpf_loop(count, fetch_value_atomic, &h, 0);
	if (!s->has_data)
		return;
	if (sleepable)
		bpf_loop(s->event.count, fetch_data_sleepable, &h, 0);
	else
		bpf_loop(s->event.count, fetch_data_atomic, &h, 0);
}

static __noinline int capture_sleepable(void *ctx, struct scratch *s, struct location *l)
{
	capture(ctx, s, l, true);
	return 0;
}

static __noinline int capture_atomic(void *ctx, struct scratch *s, struct location *l)
{
	capture(ctx, s, l, false);
	return 0;
}

/* Puts the event into the ring. */
static __noinline int deliver(struct scratch *s, struct counters *c)
{
	u32 size = s->used;

	barrier_var(size);
	if (size > MAX_BODY + MAX_READ)
		size = MAX_BODY + MAX_READ;
	if (bpf_ringbuf_output(&ring, &s->event, sizeof s->event + size, wake_flags(1))) {
		COUNT(c, ring_full);
		return 0;
	}
	COUNT(c, delivered);
	if (s->incomplete)
		COUNT(c, incomplete);
	return 0;
}

/* A function of its own: its frame is gone before the program sleeps. */
static __noinline int identify(struct scratch *s)
{
	s->event.pid = current_tgid();
	s->event.tid = current_tid();
	return 0;
}

static __always_inline int hit(void *ctx, const bool sleepable)
{
	u32 number = 0, location = bpf_get_attach_cookie(ctx);
	struct location *l = bpf_map_lookup_elem(&locations, &location);
	struct counters *c = bpf_map_lookup_elem(&accounts, &location);
	struct slot *slot;
	struct scratch *s;
	u64 time;

	if (!l || !c)
		return 0;
	COUNT(c, hits);
	slot = take_slot(&number);
	if (!slot) {
		COUNT(c, no_slot);
		return 0;
	}
	time = bpf_ktime_get_ns();
	*(volatile u64 *)&slot->time = time;
	s = bpf_map_lookup_elem(&scratches, &number);
	if (s) {
		s->event.kind = R_EVENT;
		s->event.slot = number;
		s->event.location = location;
		s->event.time = time;
		identify(s);
		s->event.cpu = bpf_get_smp_processor_id();
		s->event.pad = 0;
		if (sleepable)
			capture_sleepable(ctx, s, l);
		else
			capture_atomic(ctx, s, l);
		deliver(s, c);
	}
	/* After the event is in the ring. */
	__sync_lock_test_and_set(&slot->time, 0);
	return 0;
}

/* Linux 6.0. */
SEC("uprobe.s")
int on_hit_sleepable(void *ctx)
{
	return hit(ctx, true);
}

/* Without sleepable programs: what would need a page fault is unreadable. */
SEC("uprobe")
int on_hit_atomic(void *ctx)
{
	return hit(ctx, false);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
