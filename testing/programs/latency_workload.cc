// Functions that take known times, which they record themselves, for the tests of the latency probe.
//
// A line of the input is a command, `NAME COUNT ARGUMENT`; the answer is the number of calls. `exact NAME` answers the durations that
// the function NAME recorded of itself: count, sum, and the values at the ranks of 0, 50, 90, 99 and 100 %, in nanoseconds.
#include <algorithm>
#include <atomic>
#include <coroutine>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <mutex>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <ucontext.h>
#include <vector>

#ifdef __clang__
#define PROBED __attribute__((noinline))
#else
#define PROBED __attribute__((noinline, noclone, noipa))
#endif

namespace {

uint64_t now()
{
	timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1'000'000'000ull + time.tv_nsec;
}

std::mutex mutex;
std::map<std::string, std::vector<uint64_t>> recorded;

// `duration` is computed by the function itself: the call may be its exit, a jump, after which its thread may be preempted.
void record(const char *name, uint64_t duration)
{
	std::lock_guard lock(mutex);
	recorded[name].push_back(duration);
}

void sleep_us(long us)
{
	timespec time = {us / 1'000'000, us % 1'000'000 * 1000};
	nanosleep(&time, nullptr);
}

} // namespace

namespace work {

PROBED void nap(long us)
{
	uint64_t start = now();
	sleep_us(us);
	record("nap", now() - start);
}

PROBED void spin(long us)
{
	uint64_t start = now();
	while (now() - start < us * 1000ull) {
	}
	record("spin", now() - start);
}

// Each level takes `us` and what the levels below it take.
PROBED long recurse(long depth, long us)
{
	uint64_t start = now();
	sleep_us(us);
	long below = depth > 1 ? recurse(depth - 1, us) : 0;
	record("recurse", now() - start);
	return below + 1;
}

// Throws if `us` is odd. What throws is not recorded.
PROBED void fail(long us)
{
	uint64_t start = now();
	sleep_us(us);
	if (us % 2)
		throw std::runtime_error("odd");
	record("fail", now() - start);
}

// Catches what it calls throws.
PROBED void guard(long us)
{
	uint64_t start = now();
	try {
		fail(us);
	} catch (const std::exception &) {
	}
	record("guard", now() - start);
}

PROBED long landing(long us)
{
	sleep_us(us);
	return us;
}

// Ends by a jump to `landing`: what that takes is not its own.
PROBED long chain(long us)
{
	uint64_t start = now();
	sleep_us(us);
	record("chain", now() - start);
	return landing(us);
}

PROBED int code(int value)
{
	asm volatile("");
	return value;
}

jmp_buf out;

PROBED void jump(long us)
{
	sleep_us(us);
	longjmp(out, 1);
}

PROBED void leave(long us)
{
	sleep_us(us);
	pthread_exit(nullptr);
}

// Moves to another thread while it runs: see `fibers`.
ucontext_t fiber, caller;

PROBED void migrate(long us)
{
	uint64_t start = now();
	sleep_us(us);
	swapcontext(&fiber, &caller);
	sleep_us(us);
	record("migrate", now() - start);
}

void fiber_main()
{
	migrate(2000);
	swapcontext(&fiber, &caller);
}

// From the entry of one function to the exit of another. They read the clock themselves, after the entry and before the exit.
uint64_t submitted;

PROBED void preflight(long us)
{
	submitted = now();
	sleep_us(us);
}

PROBED int apply(long us)
{
	sleep_us(us);
	record("submit", now() - submitted);
	return us % 3 ? 0 : 104;
}

PROBED void submit(long us, bool is_applied)
{
	preflight(us);
	if (is_applied)
		apply(us);
}

// A C++20 coroutine: its function returns when it is suspended first.
struct Task {
	struct promise_type {
		Task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
		std::suspend_never initial_suspend() { return {}; }
		std::suspend_always final_suspend() noexcept { return {}; }
		void return_void() {}
		void unhandled_exception() { std::terminate(); }
	};
	std::coroutine_handle<promise_type> handle;
};

PROBED Task steps(long us)
{
	for (int i = 0; i < 3; i++) {
		sleep_us(us);
		co_await std::suspend_always{};
	}
}

template <typename T> PROBED T generic(T value)
{
	asm volatile("");
	return value;
}
template int generic(int);
template long generic(long);

PROBED void over(int) { asm volatile(""); }
PROBED void over(double) { asm volatile(""); }

static inline __attribute__((always_inline)) int vanished(int value) { return value * 3 + 1; }

} // namespace work

static void fibers(long count)
{
	std::vector<char> stack(1 << 16);
	for (long i = 0; i < count; i++) {
		getcontext(&work::fiber);
		work::fiber.uc_stack.ss_sp = stack.data();
		work::fiber.uc_stack.ss_size = stack.size();
		work::fiber.uc_link = nullptr;
		makecontext(&work::fiber, work::fiber_main, 0);
		std::thread([] { swapcontext(&work::caller, &work::fiber); }).join();
		std::thread([] { swapcontext(&work::caller, &work::fiber); }).join();
	}
}

static void run(const std::string &name, long argument)
{
	if (name == "nap")
		work::nap(argument);
	else if (name == "spin")
		work::spin(argument);
	else if (name == "recurse")
		work::recurse(argument, 2000);
	else if (name == "guard")
		work::guard(argument);
	else if (name == "chain")
		work::chain(argument);
	else if (name == "code")
		work::code(argument);
	else if (name == "submit")
		work::submit(argument, true);
	else if (name == "refuse")
		work::submit(argument, false);
	else if (name == "jump" && !setjmp(work::out))
		work::jump(argument);
	else if (name == "leave")
		std::thread([=] { work::leave(argument); }).join();
	else if (name == "migrate")
		fibers(1);
	else if (name == "steps") {
		work::Task task = work::steps(argument);
		while (!task.handle.done())
			task.handle.resume();
		task.handle.destroy();
	} else if (name == "templates") {
		work::generic(1);
		work::generic(1L);
		work::over(1);
		work::over(1.0);
		work::vanished(argument);
	}
}

static void exact(const std::string &name)
{
	std::vector<uint64_t> values = recorded[name];
	std::sort(values.begin(), values.end());
	uint64_t sum = 0;
	for (uint64_t value : values)
		sum += value;
	printf("%zu %llu", values.size(), (unsigned long long)sum);
	for (size_t percent : {0, 50, 90, 99, 100}) {
		// Nearest rank.
		size_t rank = std::max<size_t>((values.size() * percent + 99) / 100, 1);
		printf(" %llu", (unsigned long long)(values.empty() ? 0 : values[rank - 1]));
	}
	printf("\n");
}

int main()
{
	char name[64];
	setvbuf(stdout, nullptr, _IOLBF, 0);
	while (scanf("%63s", name) == 1) {
		long count = 0, argument = 0;
		if (std::string(name) == "exact") {
			if (scanf("%63s", name) != 1)
				return 1;
			exact(name);
			continue;
		}
		if (scanf("%ld %ld", &count, &argument) != 2)
			return 1;
		for (long i = 0; i < count; i++)
			run(name, argument);
		printf("%ld\n", count);
	}
}
