/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Resident memory of watched processes by allocating code: every page that is allocated to them is counted under the
 * complete user stack of the allocation until it is freed. User space reads the sums; there is no stream of events.
 *
 * The programs use raw tracepoints (Linux 4.17): classic tracepoints share one recursion flag for each CPU, so that an event
 * that interrupts another program would be missed. Minimum kernel of the programs: Linux 5.17 (bpf_loop).
 */
#include "target.h"
#include "unwind.h"
#include "migration.h"
#include "collapse.h"
#include "preexisting.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* include/linux/gfp_types.h; the same in all versions since 5.17 */
#define GFP_MOVABLE 0x08
#define GFP_HIGH 0x20
#define GFP_ZERO 0x100
#define GFP_DIRECT_RECLAIM 0x400

/* include/linux/sched.h: threads of a process that run in the kernel only */
#define PF_IO_WORKER 0x10
#define PF_USER_WORKER 0x4000
#define PF_KTHREAD 0x200000

/* ---- pages ---- */

/* Whether an interrupt allocates, not the process that it interrupted. */
static __always_inline int is_interrupt(u64 gfp)
{
	return !(gfp & GFP_DIRECT_RECLAIM) && (gfp & GFP_HIGH);
}

static __always_inline void count_stack_end(struct address_space *l, u32 end)
{
	__sync_fetch_and_add(&l->stacks[end & (STACK_ENDS - 1)], 1);
}

static __always_inline u32 current_stack_node(const struct target *t, struct counters *a, u64 thread, u32 tgid)
{
	struct address_space *l = address_space_of(t->mm);
	u32 cpu = bpf_get_smp_processor_id(), end, node;
	struct unwind_ctx ctx = { bpf_map_lookup_elem(&cpu_states, &cpu), 0, a };
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *r = task_pt_regs(task);
	struct globals *g = globals();

	if (!l || !ctx.cpu || !g)
		return 0;
	if (task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER))
		end = NO_STACK;
	else if (!l->mappings)
		end = LOADING;
	else {
		node = unwind(&ctx, l, g->edge_generation, r, thread);
		end = ctx.cpu->state.cursor.end;
		count_stack_end(l, end);
		if (end == LOADING && !l->unmapped) {
			l->unmapped = UNMAPPED_REPORTED;
			notify(N_UNMAPPED, tgid, t);
		}
		return node;
	}
	count_stack_end(l, end);
	ctx.cpu->state.edge_generation = g->edge_generation;
	ctx.cpu->state.mm = l->mm;
	ctx.cpu->state.overflow = l->overflow;
	return cached_node(&ctx, end, l->root);
}

SEC("raw_tracepoint/mm_page_alloc")
int on_alloc(u64 *args)
{
	u64 page = args[0], gfp = args[2], pfn, thread = bpf_get_current_pid_tgid();
	u32 order = args[1], tgid = current_tgid_of(thread), node;
	struct counters *a;
	struct target *t;

	if (!page)
		return 0;
	pfn = page_to_pfn(page);
	t = target_of(tgid);
	a = counters_here();
	if (!a)
		return 0;
	if (order == HUGE_ORDER)
		note_huge_allocation(thread, pfn);
	if (!t || is_interrupt(gfp)) {
		/* A free page has no owner; if this one has, its free was missed. */
		a->missed_frees += set_owners(pfn, order, 0);
		return 0;
	}
	a->allocations++;
	node = current_stack_node(t, a, thread, tgid);
	a->missed_frees += set_owners(pfn, order, node ? make_owner(node, gfp & GFP_MOVABLE ? KIND_ANON : KIND_KERNEL) : 0);
	if ((gfp & GFP_MOVABLE) && node) {
		if (order)
			add_folio(pfn, order);
		if (!(gfp & GFP_ZERO))
			queue_kind_check(pfn);
	}
	return 0;
}

SEC("raw_tracepoint/mm_page_free")
int on_free(u64 *args)
{
	u32 pfn = page_to_pfn(args[0]), order = args[1];
	struct globals *g = globals();
	u32 moved = g && g->active_collapses ? move_collapsed(pfn, order) : 0;

	if (moved + set_owners(pfn, order, 0) && order)
		bpf_map_delete_elem(&folios, &pfn);
	return 0;
}

SEC("raw_tracepoint/mm_filemap_add_to_page_cache")
int on_cache_add(u64 *args)
{
	struct pfn_range s = { .first = page_to_pfn(args[0]), .value = KIND_CACHE };
	u32 first = s.first, order, *o = bpf_map_lookup_elem(&page_owners, &first);

	if (!o || !*o)
		return 0;
	order = *o >> ORDER_SHIFT & 15;
	if (order == 0)
		set_page_kind(0, &s);
	else
		bpf_loop_(1U << order, set_page_kind, &s, 0);
	return 0;
}

/* ---- processes ---- */

static __always_inline u32 new_root(struct globals *g, u32 target)
{
	u32 id = new_node(g);
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	if (!id || !node)
		return 0;
	node->parent = 0;
	node->pc = target;
	return id;
}

static long try_mm(u32 i, u32 *mm)
{
	struct globals *g = globals();
	struct address_space *l;
	u32 key;

	if (!g)
		return 1;
	*mm = __sync_fetch_and_add(&g->last_mm, 1) + 1;
	key = *mm % MAX_ADDRESS_SPACES;
	l = bpf_map_lookup_elem(&address_spaces, &key);
	return l && !l->in_use;
}

/* Creates an address space, a copy of `like` if that is given, of a target with `nodes` nodes. Returns its number: one whose
 * entry no living process uses; there are more entries than targets. */
static __always_inline u32 new_address_space(struct globals *g, u32 target, const struct address_space *like, u32 nodes)
{
	u32 mm = 0, key;
	struct address_space *l, created = {};

	bpf_loop_(MAX_ADDRESS_SPACES, try_mm, &mm, 0);
	key = mm % MAX_ADDRESS_SPACES;
	l = bpf_map_lookup_elem(&address_spaces, &key);
	created.mm = mm;
	created.in_use = 1;
	created.root = new_root(g, target);
	created.nodes = nodes;
	if (created.root)
		created.overflow = find_node(TREE_FULL, created.root, 0);
	if (like) {
		created.mappings = like->mappings;
		created.generation = like->generation;
		if (!created.root) {
			created.root = like->root;
			created.overflow = like->overflow;
		}
	}
	if (l)
		*l = created;
	return mm;
}

/* Releases the address space of a process that has exited or executed another program. */
static __always_inline void release_address_space(u32 mm)
{
	struct address_space *l = address_space_of(mm);
	if (l)
		l->in_use = 0;
}

SEC("raw_tracepoint/sched_process_fork")
int on_fork(u64 *args)
{
	struct task_struct *parent = (void *)args[0], *child = (void *)args[1];
	u32 from = tgid_of(parent), to = tgid_of(child);
	struct globals *g = globals();
	struct target *t, created;

	if (from == to || !follow_children || !g)
		return 0;
	t = target_of(from);
	if (!t)
		return 0;
	created = *t;
	if (BPF_CORE_READ(parent, mm) == BPF_CORE_READ(child, mm)) {
		created.flags = SHARES_MM;
	} else {
		created.flags = 0;
		created.parent = t->id;
		created.id = __sync_fetch_and_add(&g->last_target, 1) + 1;
		created.mm = new_address_space(g, created.id, address_space_of(t->mm), 0);
	}
	if (insert_target(to, &created)) {
		if (!created.flags)
			release_address_space(created.mm);
		__sync_fetch_and_add(&g->lost_targets, 1);
		return 0;
	}
	if (!created.flags)
		notify(N_FORKED, to, &created);
	return 0;
}

SEC("raw_tracepoint/sched_process_exec")
int on_exec(u64 *args)
{
	struct task_struct *task = (void *)args[0];
	u32 tgid = tgid_of(task);
	struct target *t = target_of(tgid);
	struct globals *g = globals();
	struct address_space *before;
	u32 nodes = 0;

	if (!t || !g)
		return 0;
	if (t->flags & SHARES_MM) {
		t->parent = t->id;
		t->id = __sync_fetch_and_add(&g->last_target, 1) + 1;
		t->flags = 0;
		notify(N_FORKED, tgid, t);
	} else {
		before = address_space_of(t->mm);
		if (before) {
			before->in_use = 0;
			nodes = before->nodes;
		}
	}
	t->mm = new_address_space(g, t->id, 0, nodes);
	notify(N_EXECUTED, tgid, t);
	return 0;
}

SEC("raw_tracepoint/sched_process_exit")
int on_exit(u64 *args)
{
	struct task_struct *task = (void *)args[0];
	u32 tgid = tgid_of(task);
	struct target *t = target_of(tgid), last;

	if (!t || BPF_CORE_READ(task, signal, live.counter) > 0)
		return 0;
	last = *t;
	delete_target(tgid);
	if (!(last.flags & SHARES_MM)) {
		release_address_space(last.mm);
		notify(N_EXITED, tgid, &last);
	}
	return 0;
}

/* ---- removed targets ---- */

static long sweep_page(u32 i, u64 *first)
{
	u32 pfn = *first + i, *o = bpf_map_lookup_elem(&page_owners, &pfn), before, id;
	struct node *node;

	if (!o)
		return 1;
	before = *o;
	if (!before)
		return 0;
	id = before & NODE_MASK;
	node = bpf_map_lookup_elem(&nodes, &id);
	if (node && node->dead)
		__sync_val_compare_and_swap(o, before, 0);
	return 0;
}

/* Removes the owner of the pages of dead nodes, among the args[1] pages from pfn args[0] on. Run by user space
 * (BPF_PROG_TEST_RUN of raw tracepoints: Linux 5.10). */
SEC("raw_tracepoint/sweep")
int sweep(u64 *args)
{
	u64 first = args[0];

	bpf_loop_(args[1], sweep_page, &first, 0);
	return 0;
}
