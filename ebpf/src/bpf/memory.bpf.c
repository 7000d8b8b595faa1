/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Which code holds the resident memory of watched processes: every page that they get is entered under the complete user
 * stack that asked for it, and taken off when anybody frees it. User space reads the sums; there is no stream of events.
 *
 * Raw tracepoints: classic ones share one flag a CPU, so that an event which interrupts another's program is missed.
 */
#include "walk.h"
#include "moves.h"
#include "adopt.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* include/linux/gfp_types.h; the same in all versions since 5.17 */
#define GFP_MOVABLE 0x08
#define GFP_HIGH 0x20
#define GFP_ZERO 0x100
#define GFP_DIRECT_RECLAIM 0x400

/* include/linux/sched.h: threads of the process that run in the kernel only */
#define PF_IO_WORKER 0x10
#define PF_USER_WORKER 0x4000
#define PF_KTHREAD 0x200000

/* ---- pages ---- */

/* By an interrupt that found the process running, not by the process. */
static __always_inline int is_interrupt(u64 gfp)
{
	return !(gfp & GFP_DIRECT_RECLAIM) && (gfp & GFP_HIGH);
}

static __always_inline void ended(struct layout *l, u32 end)
{
	__sync_fetch_and_add(&l->stacks[end & (STACK_ENDS - 1)], 1);
}

static __always_inline u32 node_of_current(const struct target *t, struct account *a, u64 thread)
{
	struct layout *l = layout_of(t->image);
	u32 cpu = bpf_get_smp_processor_id(), end, node;
	struct here h = { bpf_map_lookup_elem(&cpus, &cpu), 0, a };
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *r = task_pt_regs(task);
	struct numbers *all = numbers();

	if (!l || !h.c || !all)
		return 0;
	if (task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER))
		end = NO_STACK;
	else if (!l->mappings)
		end = LOADING;
	else {
		node = unwind(&h, l, all->freed, r, thread);
		end = h.c->walk.end;
		ended(l, end);
		if (end == LOADING && !l->unmapped) {
			l->unmapped = UNMAPPED_TOLD;
			notify(N_UNMAPPED, thread >> 32, t);
		}
		return node;
	}
	ended(l, end);
	h.c->walk.freed = all->freed;
	return node_of(&h, end, l->root);
}

SEC("raw_tracepoint/mm_page_alloc")
int on_alloc(u64 *args)
{
	u64 page = args[0], gfp = args[2], frame, thread = bpf_get_current_pid_tgid();
	u32 order = args[1], tgid = thread >> 32, node;
	struct account *a;
	struct target *t;

	if (!page)
		return 0;
	frame = frame_of(page);
	t = bpf_map_lookup_elem(&targets, &tgid);
	a = account_here();
	if (!a)
		return 0;
	if (order == HUGE_ORDER)
		maybe_collapse(thread, frame);
	if (!t || is_interrupt(gfp)) {
		/* A frame that was free has no owner: its free was missed. */
		a->stale += set_owners(frame, order, 0);
		return 0;
	}
	a->allocations++;
	node = node_of_current(t, a, thread);
	a->stale += set_owners(frame, order, node ? owner(node, gfp & GFP_MOVABLE ? KIND_ANON : KIND_KERNEL) : 0);
	if ((gfp & GFP_MOVABLE) && node) {
		if (order)
			remember_folio(frame, order);
		if (!(gfp & GFP_ZERO))
			queue_page(frame);
	}
	return 0;
}

SEC("raw_tracepoint/mm_page_free")
int on_free(u64 *args)
{
	u32 frame = frame_of(args[0]), order = args[1];
	struct numbers *all = numbers();
	u32 moved = all && all->collapsing ? collapsed(frame, order) : 0;

	if (moved + set_owners(frame, order, 0) && order)
		bpf_map_delete_elem(&folios, &frame);
	return 0;
}

SEC("raw_tracepoint/mm_filemap_add_to_page_cache")
int on_cache_add(u64 *args)
{
	struct span s = { .first = frame_of(args[0]), .value = KIND_CACHE };
	u32 first = s.first, order, *o = bpf_map_lookup_elem(&owners, &first);

	if (!o || !*o)
		return 0;
	order = *o >> ORDER_SHIFT & 15;
	if (order == 0)
		set_kind(0, &s);
	else
		bpf_loop_(1U << order, set_kind, &s, 0);
	return 0;
}

/* ---- processes ---- */

static __always_inline u32 new_root(struct numbers *all, u32 target)
{
	u32 id = new_node(all);
	struct node *node = bpf_map_lookup_elem(&nodes, &id);

	if (!id || !node)
		return 0;
	node->parent = 0;
	node->pc = target;
	return id;
}

static long try_image(u32 i, u32 *image)
{
	struct numbers *all = numbers();
	struct layout *l;
	u32 key;

	if (!all)
		return 1;
	*image = __sync_fetch_and_add(&all->last_image, 1) + 1;
	key = *image % LAYOUTS;
	l = bpf_map_lookup_elem(&layouts, &key);
	return l && !l->in_use;
}

/* A new address space: that of `like`, if it is a copy. Returns its number: one whose entry no living process has, of
 * which there are fewer than entries. */
static __always_inline u32 new_image(struct numbers *all, u32 target, const struct layout *like)
{
	u32 image = 0, key;
	struct layout *l, fresh = {};

	bpf_loop_(LAYOUTS, try_image, &image, 0);
	key = image % LAYOUTS;
	l = bpf_map_lookup_elem(&layouts, &key);
	fresh.image = image;
	fresh.in_use = 1;
	fresh.root = new_root(all, target);
	if (like) {
		fresh.mappings = like->mappings;
		fresh.epoch = like->epoch;
		if (!fresh.root)
			fresh.root = like->root;
	}
	if (l)
		*l = fresh;
	return image;
}

/* No process has this address space any more. */
static __always_inline void leave_image(u32 image)
{
	struct layout *l = layout_of(image);
	if (l)
		l->in_use = 0;
}

SEC("raw_tracepoint/sched_process_fork")
int on_fork(u64 *args)
{
	struct task_struct *parent = (void *)args[0], *child = (void *)args[1];
	u32 from = BPF_CORE_READ(parent, tgid), to = BPF_CORE_READ(child, tgid);
	struct numbers *all = numbers();
	struct target *t, fresh;

	if (from == to || !follow_children || !all)
		return 0;
	t = bpf_map_lookup_elem(&targets, &from);
	if (!t)
		return 0;
	fresh = *t;
	if (BPF_CORE_READ(parent, mm) == BPF_CORE_READ(child, mm)) {
		fresh.flags = BORROWED;
	} else {
		fresh.flags = 0;
		fresh.parent = t->id;
		fresh.id = __sync_fetch_and_add(&all->last_target, 1) + 1;
		fresh.image = new_image(all, fresh.id, layout_of(t->image));
	}
	if (bpf_map_update_elem(&targets, &to, &fresh, BPF_ANY)) {
		if (!fresh.flags)
			leave_image(fresh.image);
		__sync_fetch_and_add(&all->lost_targets, 1);
		return 0;
	}
	if (!fresh.flags)
		notify(N_FORKED, to, &fresh);
	return 0;
}

SEC("raw_tracepoint/sched_process_exec")
int on_exec(u64 *args)
{
	struct task_struct *task = (void *)args[0];
	u32 tgid = BPF_CORE_READ(task, tgid);
	struct target *t = bpf_map_lookup_elem(&targets, &tgid);
	struct numbers *all = numbers();

	if (!t || !all)
		return 0;
	if (t->flags & BORROWED) {
		t->parent = t->id;
		t->id = __sync_fetch_and_add(&all->last_target, 1) + 1;
		t->flags = 0;
		notify(N_FORKED, tgid, t);
	} else {
		leave_image(t->image);
	}
	t->image = new_image(all, t->id, 0);
	notify(N_EXECUTED, tgid, t);
	return 0;
}

SEC("raw_tracepoint/sched_process_exit")
int on_exit(u64 *args)
{
	struct task_struct *task = (void *)args[0];
	u32 tgid = BPF_CORE_READ(task, tgid);
	struct target *t = bpf_map_lookup_elem(&targets, &tgid), last;

	if (!t || BPF_CORE_READ(task, signal, live.counter) > 0)
		return 0;
	last = *t;
	bpf_map_delete_elem(&targets, &tgid);
	if (!(last.flags & BORROWED)) {
		leave_image(last.image);
		notify(N_EXITED, tgid, &last);
	}
	return 0;
}

/* ---- targets that are forgotten ---- */

static long sweep_one(u32 i, u64 *first)
{
	u32 frame = *first + i, *o = bpf_map_lookup_elem(&owners, &frame), before, id;
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

/* Run by user space: frames of dead nodes, from args[0] on, args[1] of them, are nobody's any more. */
SEC("raw_tracepoint/sweep")
int sweep(u64 *args)
{
	u64 first = args[0];

	bpf_loop_(args[1], sweep_one, &first, 0);
	return 0;
}
