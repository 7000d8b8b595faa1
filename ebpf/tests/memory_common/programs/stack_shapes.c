/* Stacks of varying shape for the soundness check of the unwinder: stack_shapes PAGES */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
#define APART __attribute__((noinline, noclone))
#define AREA (8L << 20)

static __thread char *area;
static __thread long at;
static __thread unsigned long seed;
static __thread int handling;
static long pages;

static unsigned number(void)
{
	seed = seed * 6364136223846793005UL + 1442695040888963407UL;
	return seed >> 33;
}
APART void touch(void)
{
	if (!area)
		area = mmap(0, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at >= AREA) {
		madvise(area, AREA, MADV_DONTNEED);
		at = 0;
	}
	area[at] = 1;
	at += 4096;
	__asm__ volatile("");
}
/* twin_a and twin_b have the same frame size and callee return address slot: only a slot in the middle differs. */
APART void middle(int d)
{
	touch();
	if (d)
		middle(d - 1);
	touch();
	__asm__ volatile("");
}
APART void twin_a(int d)
{
	middle(d);
	__asm__ volatile("nop");
}
APART void twin_b(int d)
{
	middle(d);
	__asm__ volatile("nop");
}
APART void twins(void)
{
	for (int i = 0; i < 8; i++) {
		twin_a(3);
		twin_b(3);
	}
	__asm__ volatile("");
}
APART int deep(int d)
{
	touch();
	int r = d ? deep(d - 1) + 1 : 0;
	if (!(d & 7))
		touch();
	return r;
}
/* Tail calls. */
APART int even(int d);
APART int odd(int d)
{
	touch();
	return d ? even(d - 1) : 0;
}
APART int even(int d)
{
	touch();
	return d ? odd(d - 1) : 1;
}
/* alloca: the CFA is relative to rbp. */
APART long dynamic(int d)
{
	volatile char *p = __builtin_alloca(16 + number() % 3000);
	p[0] = 1;
	touch();
	return d ? dynamic(d - 1) + p[0] : p[0];
}
/* Realigned stack: the CFA is a stored pointer. */
APART long aligned(int d)
{
	volatile char v[100] __attribute__((aligned(64)));
	v[number() % 100] = 1;
	volatile char *p = __builtin_alloca(16 + number() % 300);
	p[0] = 1;
	touch();
	return d ? aligned(d - 1) + v[0] : v[0];
}
/* A frame larger than the unwinder's stack copy. */
APART void large(int d)
{
	volatile char v[9000];
	v[number() % 9000] = 1;
	touch();
	if (d)
		large(d - 1);
	touch();
	v[0] = 2;
}
static __thread jmp_buf back;
APART void thrower(int d)
{
	touch();
	if (!d)
		longjmp(back, 1);
	thrower(d - 1);
	__asm__ volatile("");
}
APART void jumps(void)
{
	for (volatile int i = 0; i < 4; i++) {
		if (!setjmp(back))
			thrower(number() % 20);
		touch();
	}
	__asm__ volatile("");
}
static int compare(const void *a, const void *b)
{
	touch();
	return *(const int *)a - *(const int *)b;
}
APART void sorts(void)
{
	int v[24];
	for (int i = 0; i < 24; i++)
		v[i] = number() % 1000;
	qsort(v, 24, sizeof *v, compare);
	__asm__ volatile("");
}
/* Coroutines on a separate stack. */
static __thread ucontext_t mine, other;
static void coroutine(void)
{
	for (;;) {
		deep(number() % 6);
		swapcontext(&other, &mine);
	}
}
APART void switches(void)
{
	static __thread char *stack;
	if (!stack) {
		stack = malloc(65536);
		getcontext(&other);
		other.uc_stack.ss_sp = stack;
		other.uc_stack.ss_size = 65536;
		makecontext(&other, coroutine, 0);
	}
	for (int i = 0; i < 3; i++) {
		swapcontext(&mine, &other);
		touch();
	}
	__asm__ volatile("");
}
static void handler(int s)
{
	if (handling++ == 0)
		deep(s == SIGALRM ? 5 : number() % 9);
	handling--;
}
APART void signals(void)
{
	for (int i = 0; i < 3; i++) {
		raise(i & 1 ? SIGUSR2 : SIGUSR1);
		touch();
	}
	__asm__ volatile("");
}
static void (*const ways[])(void) = { twins, jumps, sorts, switches, signals };
APART void pick(int d)
{
	unsigned r = number() % 13;
	touch();
	if (d && r > 9) {
		pick(d - 1);
		touch();
		return;
	}
	if (r < 5)
		ways[r]();
	else if (r == 5)
		deep(number() % 60);
	else if (r == 6)
		even(number() % 12);
	else if (r == 7)
		dynamic(number() % 12);
	else if (r == 8)
		aligned(number() % 8);
	else
		large(number() % 5);
	touch();
}
static void *worker(void *number_of)
{
	seed = (long)number_of * 7919 + 1;
	stack_t s = { malloc(65536), 0, 65536 };
	sigaltstack(&s, 0);
	for (long i = 0; i < pages / 40; i++)
		pick(number() % 12);
	return 0;
}

int main(int count, char **arguments)
{
	pthread_t threads[5];
	struct sigaction a = { .sa_handler = handler };
	struct itimerval often = { { 0, 700 }, { 0, 700 } };

	pages = count > 1 ? atol(arguments[1]) : 1000;
	puts("ready");
	fflush(stdout);
	getchar();
	sigaction(SIGUSR1, &a, 0);
	sigaction(SIGALRM, &a, 0);
	a.sa_flags = SA_ONSTACK;
	sigaction(SIGUSR2, &a, 0);
	setitimer(ITIMER_REAL, &often, 0);
	for (long i = 0; i < 5; i++)
		pthread_create(&threads[i], 0, worker, (void *)(i + 1));
	worker(0);
	for (int i = 0; i < 5; i++)
		pthread_join(threads[i], 0);
	often = (struct itimerval){ { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &often, 0);
	puts("done");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
