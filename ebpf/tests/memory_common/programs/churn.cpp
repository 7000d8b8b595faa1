// Allocation workload without frame pointers: templates, virtual calls, exceptions, std::function, threads, recursion.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct Shape {
	virtual ~Shape() = default;
	virtual long grow(int depth, unsigned seed) = 0;
};
static std::unique_ptr<Shape> next(unsigned seed);
template <int N> struct Sized : Shape {
	std::vector<char> bytes;
	long grow(int depth, unsigned seed) override
	{
		bytes.assign(N * 512 + seed % 3000, 1);
		if (!depth)
			return bytes.size();
		auto inner = next(seed);
		std::function<long()> call = [&] { return inner->grow(depth - 1, seed * 31 + 7); };
		return call() + bytes.size();
	}
};
static std::unique_ptr<Shape> next(unsigned seed)
{
	if (seed % 3 == 0)
		return std::make_unique<Sized<1>>();
	if (seed % 3 == 1)
		return std::make_unique<Sized<7>>();
	return std::make_unique<Sized<30>>();
}
__attribute__((noinline)) static void thrower(int depth)
{
	std::string text(5000, 'x');
	if (!depth)
		throw std::runtime_error(text);
	thrower(depth - 1);
}
static long work(unsigned seed)
{
	long sum = 0;
	for (int round = 0; round < 150; round++) {
		sum += next(seed + round)->grow(round % 50, seed + round);
		std::map<std::string, std::string> words;
		for (int i = 0; i < 2000; i++)
			words[std::to_string(i * (seed | 1))] = std::string(i % 300, 'a');
		sum += words.size();
		try {
			thrower(round % 9);
		} catch (const std::exception &error) {
			sum += error.what()[0];
		}
		std::vector<unsigned> numbers(3000);
		std::generate(numbers.begin(), numbers.end(), [&] { return seed = seed * 1103515245 + 12345; });
		std::stable_sort(numbers.begin(), numbers.end());
	}
	return sum;
}

int main()
{
	std::puts("ready");
	std::fflush(stdout);
	std::getchar();
	std::vector<std::thread> threads;
	std::vector<long> sums(5);
	for (int i = 0; i < 4; i++)
		threads.emplace_back([&sums, i] { sums[i] = work(i); });
	sums[4] = work(99);
	for (auto &thread : threads)
		thread.join();
	std::puts("done");
	std::fflush(stdout);
	while (std::getchar() != EOF)
		;
	return sums[4] == 1;
}
