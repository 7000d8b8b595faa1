/*
 * C functions without exceptions for the tests of the latency probe, among them a thousand alike. Commands and answers are those of
 * latency_workload.cc: `nap COUNT US`, `recurse COUNT DEPTH`, `hits COUNT THREADS`, `all COUNT 0`; `exact nap`. `vary COUNT PERMILLE`
 * naps for 0.8 to 1.2 ms, times a factor.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

PROBED void plain_nap(long us)
{
	struct timespec time = { us / 1000000, us % 1000000 * 1000 };
	uint64_t start = now();

	nanosleep(&time, NULL);
	if (recorded < MAX_RECORDS)
		records[recorded++] = now() - start;
}

PROBED long plain_recurse(long depth)
{
	long below = depth > 1 ? plain_recurse(depth - 1) : 0;

	asm volatile("" : "+r"(below));
	return below + 1;
}

PROBED int plain_code(int value)
{
	asm volatile("");
	return value;
}

/* Begins with an instruction that the kernel emulates. */
PROBED void plain_hit(void)
{
	asm volatile("nop; nop");
}

#define ONE(n) PROBED void many_##n(void) { asm volatile("nop"); }
#define TEN(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7) ONE(n##8) ONE(n##9)
#define HUNDRED(n) TEN(n##0) TEN(n##1) TEN(n##2) TEN(n##3) TEN(n##4) TEN(n##5) TEN(n##6) TEN(n##7) TEN(n##8) TEN(n##9)
HUNDRED(0) HUNDRED(1) HUNDRED(2) HUNDRED(3) HUNDRED(4) HUNDRED(5) HUNDRED(6) HUNDRED(7) HUNDRED(8) HUNDRED(9)
#undef ONE
#define ONE(n) many_##n,
static void (*const many[])(void) = {
	HUNDRED(0) HUNDRED(1) HUNDRED(2) HUNDRED(3) HUNDRED(4) HUNDRED(5) HUNDRED(6) HUNDRED(7) HUNDRED(8) HUNDRED(9)
};

static void *hits(void *count)
{
	for (long i = 0; i < (long)count; i++)
		plain_hit();
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
	uint64_t start;

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
		if (!strcmp(name, "hits")) {
			/* Answers the nanoseconds that all of them took. */
			pthread_t threads[64];

			start = now();
			for (long i = 0; i < argument && i < 64; i++)
				pthread_create(&threads[i], NULL, hits, (void *)count);
			for (long i = 0; i < argument && i < 64; i++)
				pthread_join(threads[i], NULL);
			printf("%llu\n", (unsigned long long)(now() - start));
			continue;
		}
		for (long i = 0; i < count; i++) {
			if (!strcmp(name, "nap"))
				plain_nap(argument);
			else if (!strcmp(name, "vary"))
				plain_nap((800 + i * 79 % 400) * argument / 1000);
			else if (!strcmp(name, "recurse"))
				plain_recurse(argument);
			else if (!strcmp(name, "code"))
				plain_code(argument);
			else if (!strcmp(name, "all"))
				for (size_t f = 0; f < sizeof many / sizeof many[0]; f++)
					many[f]();
		}
		printf("%ld\n", count);
	}
	return 0;
}
