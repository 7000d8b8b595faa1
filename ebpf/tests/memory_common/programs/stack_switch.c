/* Switches stacks like the OCaml 5 runtime, with the same DWARF CFA expressions. */
#include <stdio.h>
#include <sys/mman.h>

/* Calls f on another stack, with the link (stack, caller's sp) at rsp: CFA = *(rsp + 8) + 8. */
void on_c_stack(void (*f)(void), char *top);
/* Calls f in a fibre whose handler at rsp + 16 points to the parent's saved sp: CFA = *(*(rsp + 16) + 0) + 8. */
void in_fibre(void (*f)(void), char *top);
__asm__(".text\n"
	"on_c_stack:\n"
	".cfi_startproc\n"
	"	mov %rsp, %rax\n"
	"	lea -16(%rsi), %rsp\n"
	"	mov %rax, 8(%rsp)\n"
	".cfi_escape 0x0f, 5, 0x77, 8, 6, 0x23, 8\n"
	"	call *%rdi\n"
	"	mov 8(%rsp), %rsp\n"
	".cfi_def_cfa rsp, 8\n"
	"	ret\n"
	".cfi_endproc\n"
	"in_fibre:\n"
	".cfi_startproc\n"
	"	mov %rsp, %rax\n"
	"	lea -64(%rsi), %rsp\n"
	"	lea 32(%rsp), %rcx\n"
	"	mov %rax, (%rcx)\n"
	"	mov %rcx, 16(%rsp)\n"
	".cfi_escape 0x0f, 8, 0x77, 16, 6, 0x23, 0, 6, 0x23, 8\n"
	"	call *%rdi\n"
	"	mov 32(%rsp), %rsp\n"
	".cfi_def_cfa rsp, 8\n"
	"	ret\n"
	".cfi_endproc\n");

static char *stacks[2], *area;
static long at;

__attribute__((noinline)) static void touch(void)
{
	for (int i = 0; i < 50; i++, at++)
		area[at * 4096] = 1;
	__asm__ volatile("");
}
__attribute__((noinline)) static void back_in_c(void)
{
	touch();
	on_c_stack(touch, stacks[1]);
	touch();
}

int main(void)
{
	char line[16];

	for (int i = 0; i < 2; i++)
		stacks[i] = (char *)mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 65536;
	area = mmap(0, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	for (int i = 0; i < 50; i++) {
		touch();
		on_c_stack(touch, stacks[0]);
		in_fibre(back_in_c, stacks[0]);
	}
	puts("done");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		;
	return 0;
}
