/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Wakes the reader of the ring. The including file defines `ring` and `wake_bytes` before. */
#pragma once

/* State of the reader, mapped into its process. Mappable array: Linux 5.5. */
struct reader {
	u32 waiting; /* set by the reader before it waits, cleared by who wakes it */
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct reader);
} readers SEC(".maps");

/*
 * Flags of a submission: wakes the reader if it waits and the backlog is large, once for each wait: a sender that outruns
 * the reader, or whose reader is stopped, pays for no wake-up. The decision is by backlog, not by producer position, which
 * wakes too late when other processes are busy.
 */
static __always_inline u64 wake_flags(void)
{
	struct reader *reader;
	u32 key = 0;

	reader = bpf_map_lookup_elem(&readers, &key);
	if (!reader || !*(volatile u32 *)&reader->waiting || bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) < wake_bytes)
		return BPF_RB_NO_WAKEUP;
	return __sync_lock_test_and_set(&reader->waiting, 0) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}
