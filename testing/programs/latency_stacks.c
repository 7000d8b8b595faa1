/*
 * C without exceptions, whose functions are left in other ways than by returning, for the tests of the latency probe: coroutines that
 * take turns within a function, longjmp, and threads that end in it. Commands and answers are those of latency_workload.cc:
 * `turns COUNT US`, `jump COUNT US`, `leave COUNT US`; `exact turn`.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#ifdef __clang__
#define PROBED __attribute__((noinline))
#else
#define PROBED __attribute__((noinline, noclone, noipa))
#endif
#define MAX_RECORDS 100000

static uint64_t records[MAX_RECORDS];
static long recorded;

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void sleep_us(long us)
{
	struct timespec time = { us / 1000000, us % 1000000 * 1000 };

	nanosleep(&time, NULL);
}

/* Two coroutines; the second has the stack at the higher address. */
static ucontext_t caller, routines[2];
static char stacks[2][1 << 16];
static long duration;

PROBED void stack_turn(int own)
{
	uint64_t start = now();

	sleep_us(duration);
	/* The other one calls this function, or goes on in it. */
	swapcontext(&routines[own], &routines[!own]);
	if (recorded < MAX_RECORDS)
		records[recorded++] = now() - start;
}

static void routine(int own)
{
	stack_turn(own);
	swapcontext(&routines[own], own ? &caller : &routines[1]);
}

static void turns(long us)
{
	duration = us;
	for (int i = 0; i < 2; i++) {
		getcontext(&routines[i]);
		routines[i].uc_stack.ss_sp = stacks[i];
		routines[i].uc_stack.ss_size = sizeof stacks[i];
		routines[i].uc_link = NULL;
		makecontext(&routines[i], (void (*)(void))routine, 1, i);
	}
	swapcontext(&caller, &routines[0]);
}

static jmp_buf out;

PROBED void stack_jump(long us)
{
	sleep_us(us);
	longjmp(out, 1);
}

PROBED void stack_leave(long us)
{
	sleep_us(us);
	pthread_exit(NULL);
}

static void *leaving(void *us)
{
	stack_leave((long)us);
	return NULL;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void exact(void)
{
	static const long percents[] = { 0, 50, 90, 99, 100 };
	uint64_t sum = 0;

	qsort(records, recorded, sizeof records[0], compare);
	for (long i = 0; i < recorded; i++)
		sum += records[i];
	printf("%ld %llu", recorded, (unsigned long long)sum);
	for (int i = 0; i < 5; i++) {
		long rank = (recorded * percents[i] + 99) / 100;

		printf(" %llu", (unsigned long long)records[rank > 0 ? rank - 1 : 0]);
	}
	printf("\n");
}

int main(void)
{
	char name[64];
	long count, argument;
	pthread_t thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (scanf("%63s", name) == 1) {
		if (!strcmp(name, "exact")) {
			if (scanf("%63s", name) != 1)
				return 1;
			exact();
			continue;
		}
		if (scanf("%ld %ld", &count, &argument) != 2)
			return 1;
		for (volatile long i = 0; i < count; i++) {
			if (!strcmp(name, "turns")) {
				turns(argument);
			} else if (!strcmp(name, "jump")) {
				if (!setjmp(out))
					stack_jump(argument);
			} else if (!strcmp(name, "leave")) {
				pthread_create(&thread, NULL, leaving, (void *)argument);
				pthread_join(thread, NULL);
			}
		}
		printf("%ld\n", count);
	}
	return 0;
}
