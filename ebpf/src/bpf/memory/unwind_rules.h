/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Unwind rule of an address: a binary search for its mapping and one for the row of the unwind table of the mapped file.
 * User space builds the tables (crate `unwind`); the table of a file is shared by all processes that map it.
 */
#pragma once
#include "memory.h"

/* `Row` of the crate `unwind`. */
struct rule_row {
	u32 pc; /* first address that the row applies to */
	s32 cfa;
	s16 rbp;
	u8 cfa_kind, rbp_kind;
};
_Static_assert(sizeof(struct rule_row) == 12, "unwind/src/row.rs");

enum cfa_kind {
	CFA_GAP = 0,
	CFA_RSP,
	CFA_RBP,
	CFA_DEREF_RSP,
	CFA_DEREF_RBP,
	CFA_DEREF_TWICE_RSP,
	CFA_PLT,
	CFA_SIGNAL,
	CFA_END,
	CFA_UNSUPPORTED,
	CFA_RBX,
	CFA_LEAF,
	CFA_R10,
	CFA_R11,
	/* Not in tables: */
	CFA_NO_TABLE = 16, /* code without call frame information: unwound by frame pointer */
	CFA_NO_MAPPING,
};
enum rbp_kind { RBP_SAME = 0, RBP_AT_CFA, RBP_AT_RBP };

/* The rule of a row in one word. */
#define RULE(kind) ((u64)(kind) << 48)
static __always_inline u8 cfa_kind_of(u64 rule) { return rule >> 48; }
static __always_inline u8 rbp_kind_of(u64 rule) { return rule >> 56; }
static __always_inline s32 cfa_of(u64 rule) { return (s32)rule; }
/* For CFAs that are an offset from a register; the other bits locate the saved rbx, in slots below the CFA. */
static __always_inline s32 offset_of(u64 rule) { return (s32)rule << 8 >> 8; }
static __always_inline u8 rbx_of(u64 rule) { return rule >> 24; }
#define RBX_LOST 255
static __always_inline s64 rbp_offset_of(u64 rule) { return (s64)(s16)(rule >> 32) * 8; }

/* An executable mapping of a process. The first element of a table is a header: `rows` is the number of mappings. */
struct mapping {
	u64 start, end;
	u64 bias; /* address - bias is the address in the rows */
	u32 table;
	u32 rows;
};
_Static_assert(sizeof(struct mapping) == 32, "src/memory/kernel.rs");

/* Mappings by address space. Array of maps: Linux 4.12; inner maps of different sizes: 5.10. The inner maps use unnamed types,
 * because clang writes only the name of a named type into BTF. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 8192);
	__type(key, u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP); /* of any size: Linux 5.10 */
		__uint(max_entries, 1);
		__uint(key_size, sizeof(u32));
		__uint(value_size, sizeof(struct mapping));
	});
} mapping_tables SEC(".maps");

/* Array elements are multiples of 8 bytes, so an element holds two rows. */
struct rule_pair {
	struct rule_row rows[2];
};

/* Unwind tables by file. As above: Linux 5.10. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 8192);
	__type(key, u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
		__uint(max_entries, 1);
		__uint(key_size, sizeof(u32));
		__uint(value_size, sizeof(struct rule_pair));
	});
} rule_tables SEC(".maps");

/* Binary search for the first element beyond `key`, between `low` and `high`. */
struct search {
	void *map;
	u64 key;
	u32 low, high;
};

static long search_mapping(u32 i, struct search *s)
{
	u32 middle = s->low + (s->high - s->low) / 2;
	struct mapping *m;

	if (s->low >= s->high)
		return 1;
	m = bpf_map_lookup_elem(s->map, &middle);
	if (!m)
		return 1;
	if (m->start <= s->key)
		s->low = middle + 1;
	else
		s->high = middle;
	return 0;
}

static long search_row(u32 i, struct search *s)
{
	u32 middle = s->low + (s->high - s->low) / 2, at = middle / 2;
	struct rule_pair *pair;

	if (s->low >= s->high)
		return 1;
	pair = bpf_map_lookup_elem(s->map, &at);
	if (!pair)
		return 1;
	if (pair->rows[middle & 1].pc <= (u32)s->key)
		s->low = middle + 1;
	else
		s->high = middle;
	return 0;
}

/* Global: the verifier checks it once instead of at every call. */
__noinline u64 find_rule(u64 pc, u32 mappings)
{
	struct search s = { 0, pc, 1, 0 };
	struct rule_pair *pair;
	struct rule_row *r;
	struct mapping *m;
	u32 at = 0, table;

	s.map = bpf_map_lookup_elem(&mapping_tables, &mappings);
	if (!s.map)
		return RULE(CFA_NO_MAPPING);
	m = bpf_map_lookup_elem(s.map, &at);
	if (!m)
		return RULE(CFA_NO_MAPPING);
	s.high = m->rows + 1;
	bpf_loop_(24, search_mapping, &s, 0);
	at = s.low - 1;
	if (!at)
		return RULE(CFA_NO_MAPPING);
	m = bpf_map_lookup_elem(s.map, &at);
	if (!m || pc >= m->end)
		return RULE(CFA_NO_MAPPING);
	if (!m->rows)
		return RULE(CFA_NO_TABLE);
	s.key = pc - m->bias;
	if (s.key >> 32)
		return RULE(CFA_GAP);
	s.low = 0;
	s.high = m->rows;
	table = m->table;
	s.map = bpf_map_lookup_elem(&rule_tables, &table);
	if (!s.map)
		return RULE(CFA_NO_TABLE);
	bpf_loop_(32, search_row, &s, 0);
	if (!s.low)
		return RULE(CFA_GAP);
	at = (s.low - 1) / 2;
	pair = bpf_map_lookup_elem(s.map, &at);
	if (!pair)
		return RULE(CFA_GAP);
	r = &pair->rows[(s.low - 1) & 1];
	return (u32)r->cfa | (u64)(u16)r->rbp << 32 | (u64)r->cfa_kind << 48 | (u64)r->rbp_kind << 56;
}
