/*
 * Functions of one instruction for the tests of the latency probe: `empty COUNT 0` calls one that only returns, `thunk COUNT 0` one that
 * only jumps to another one. The answer is the number of calls.
 */
#include <stdio.h>
#include <string.h>

asm(".text\n"
    ".globl tiny_empty\n.type tiny_empty, @function\ntiny_empty: ret\n.size tiny_empty, .-tiny_empty\n"
    ".globl tiny_thunk\n.type tiny_thunk, @function\ntiny_thunk: jmp tiny_target\n.size tiny_thunk, .-tiny_thunk\n"
    ".globl tiny_target\n.type tiny_target, @function\ntiny_target: push %rbx; pop %rbx; ret\n.size tiny_target, .-tiny_target\n");

void tiny_empty(void);
void tiny_thunk(void);

int main(void)
{
	char name[64];
	long count, argument;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (scanf("%63s %ld %ld", name, &count, &argument) == 3) {
		for (long i = 0; i < count; i++) {
			if (!strcmp(name, "empty"))
				tiny_empty();
			else if (!strcmp(name, "thunk"))
				tiny_thunk();
		}
		printf("%ld\n", count);
	}
	return 0;
}
