/*
 * Tracepoints with semaphores that a tracer can and cannot increment, and one that is at no code. Its semaphore of `guarded:fired`
 * is in a page that is read-only from the start on, as data after relocation (RELRO) are. Hits all of them for each line of its
 * input, and replies to it.
 */
#define _SDT_HAS_SEMAPHORES 1
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sdt.h>

#define PAGE 4096

unsigned short plain_fired_semaphore __attribute__((section(".probes")));

/* A page of its own. */
static union {
	unsigned short semaphore;
	char page[PAGE];
} guarded __attribute__((used, aligned(PAGE))) = { .page = { [PAGE - 1] = 1 } };
extern unsigned short guarded_fired_semaphore __attribute__((alias("guarded")));

/* In a segment that is not writable. */
const unsigned short constant_fired_semaphore __attribute__((section(".rodata"), used)) = 0;

/* A note whose location is data. */
int place = 1;
__asm__(".pushsection .note.stapsdt, \"\", \"note\"\n"
	".balign 4\n"
	".4byte 8, 2f - 1f, 3\n"
	".asciz \"stapsdt\"\n"
	"1: .8byte place, _.stapsdt.base, 0\n"
	".asciz \"data\"\n"
	".asciz \"fired\"\n"
	".asciz \"\"\n"
	"2: .balign 4\n"
	".popsection\n");

int main(void)
{
	char line[64];

	if (mprotect(&guarded, PAGE, PROT_READ))
		return 1;
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		if (*(volatile unsigned short *)&plain_fired_semaphore)
			DTRACE_PROBE1(plain, fired, 1);
		if (*(volatile unsigned short *)&guarded.semaphore)
			DTRACE_PROBE1(guarded, fired, 2);
		if (*(const volatile unsigned short *)&constant_fired_semaphore)
			DTRACE_PROBE1(constant, fired, 3);
		puts("done");
		fflush(stdout);
	}
	return 0;
}
