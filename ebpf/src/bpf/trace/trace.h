/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Interface of the tracepoint programs to user space: records of the ring, maps and counters. `src/trace/abi.rs` mirrors
 * them; sizes are asserted on both sides.
 */
#pragma once
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

#define MAX_ARGUMENTS 12
#define MAX_LOCATIONS 4096
#define SLOTS 64

/* Data of an argument that does not fit in the event record is in chunk records of this size. */
#define CHUNK 32768
/* Greatest number of bytes read at once. */
#define MAX_READ CHUNK
#define MAX_TEXT 16384
#define PAGE 4096
/* Data begins in `body` at most at this offset. */
#define MAX_BODY 65536

enum operand { OPERAND_UNSUPPORTED = 0, OPERAND_CONSTANT, OPERAND_REGISTER, OPERAND_MEMORY };
enum fetch { FETCH_VALUE = 0, FETCH_STRING, FETCH_BYTES, FETCH_PAYLOAD };
/* Register numbers of `struct argument` are indexes of 8 bytes in `struct pt_regs`. */
enum { NO_REGISTER = 255, INSTRUCTION_POINTER = 16, SAVED_REGISTERS = 21 };

enum record_kind { R_EVENT = 1, R_CHUNK = 2 };

/* Flags of an argument in an event record. */
enum {
	VALUE_UNSUPPORTED = 1, /* the operand is not known */
	VALUE_UNREADABLE = 2,  /* the memory that holds the value cannot be read */
	DATA_UNREADABLE = 4,   /* reading stopped at memory that cannot be read */
	DATA_TRUNCATED = 8,    /* reading stopped at a limit */
	DATA_RING_FULL = 16,   /* reading stopped because the ring was full */
	LENGTH_UNKNOWN = 32,   /* the argument that has the length has no value, or a negative one */
};

/* How to fetch an argument. */
struct argument {
	u8 operand;
	u8 size; /* 1, 2, 4 or 8 */
	u8 is_signed;
	u8 shift; /* of a register, in bits */
	u8 base, index, scale;
	u8 fetch;
	u32 length; /* FETCH_BYTES: number of bytes; FETCH_PAYLOAD: number of the argument that has it */
	u32 pad;
	u64 number; /* the constant, or the displacement of the address */
};
_Static_assert(sizeof(struct argument) == 24, "src/trace/abi.rs");

struct location {
	u32 count;
	u32 pad;
	struct argument arguments[MAX_ARGUMENTS];
};
_Static_assert(sizeof(struct location) == 296, "src/trace/abi.rs");

/* Of one location. Changed atomically: programs that sleep may run several times at once on one CPU. */
struct counters {
	u64 hits, delivered;
	u64 ring_full, no_slot;
	u64 incomplete; /* delivered without the rest of a payload, because the ring was full */
};
_Static_assert(sizeof(struct counters) == 40, "src/trace/abi.rs");

/* An event: this, a `struct result` for each argument, then the data of the arguments in their order. */
struct event_header {
	u8 kind, slot;
	u16 count;
	u32 location;
	u64 time;
	u32 pid, tid;
	u32 cpu;
	u32 pad;
	u8 comm[16];
};
_Static_assert(sizeof(struct event_header) == 48, "src/trace/record.rs");

struct result {
	u64 value; /* extended to 64 bits; with VALUE_UNREADABLE: the address that it could not be read from */
	u32 length; /* bytes of data in the event record, after those in chunk records */
	u16 chunks;
	u16 flags;
};
_Static_assert(sizeof(struct result) == 16, "src/trace/record.rs");

/* A chunk precedes the record of its event, which has the same slot and time. CHUNK bytes follow. */
struct chunk_header {
	u8 kind, slot;
	u8 argument, pad;
	u32 number;
	u64 time;
};
_Static_assert(sizeof(struct chunk_header) == 16, "src/trace/record.rs");

/* Options, set by the loader. */
const volatile u32 wake_bytes = 2 << 20;      /* backlog of the ring at which the reader is woken */
const volatile u32 max_string = 4096;         /* bytes without the NUL, at most MAX_TEXT */
const volatile u64 max_payload = 4 << 20;

/* Records for user space. Linux 5.8. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 << 20);
} ring SEC(".maps");

/* By attachment cookie. Linux 3.19. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LOCATIONS);
	__type(key, u32);
	__type(value, struct location);
} locations SEC(".maps");

/* By attachment cookie. Per-CPU array: Linux 4.6; in sleepable programs: Linux 5.13. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_LOCATIONS);
	__type(key, u32);
	__type(value, struct counters);
} accounts SEC(".maps");

/* Begin of the hit that uses a slot: 0: free, STARTING: not known yet. Mapped by user space. Mappable array: Linux 5.5. */
struct slot {
	u64 time;
	u64 pad[7]; /* a cache line of its own */
};
#define STARTING 1

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS);
	__type(key, u32);
	__type(value, struct slot);
} slots SEC(".maps");

/*
 * Memory of a hit, by slot. An event is put together here, because no record of the ring may be held while the program
 * sleeps: it would stop the reader.
 *
 * The state of a hit is here as well, and little of it on the stack. Linux 6.13 and later give functions whose frame has 64
 * bytes or more a stack for each CPU, which the next hit on the CPU overwrites while this one sleeps. build.rs fails if a
 * frame is larger.
 */
struct scratch {
	u64 registers[32]; /* struct pt_regs */
	struct event_header event;
	u8 body[MAX_BODY + MAX_READ + PAGE]; /* the last page only makes bounds simple */
	u32 used; /* bytes of `body` */
	u32 argument;
	/* What is to be read into `body`. */
	struct {
		u64 from;
		u32 left; /* a text may be longer */
		u32 flags;
	} read;
	/* The bytes of an argument. */
	struct {
		u64 from;
		u32 chunks; /* delivered */
		u32 flags;
		u32 rest; /* after the chunks */
		u32 limit_flags;
		u32 used; /* before the chunk */
		u32 begin;
	} payload;
	u32 has_data, incomplete;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");
