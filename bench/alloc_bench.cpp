// The malloc family as a program meets it: run this under each allocator by LD_PRELOAD and compare
// (`--benchmark_filter=...`, `--benchmark_repetitions=...`). It links no allocator itself.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

// Defeats the compiler's right to remove a pair whose block is not used.
void use(void* p) { benchmark::DoNotOptimize(p); }

std::uint64_t next(std::uint64_t& x) {
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x;
}

void small_pair(benchmark::State& state) {
  const auto bytes = std::size_t(state.range(0));
  for (auto _ : state) {
    void* p = std::malloc(bytes);
    use(p);
    std::free(p);
  }
}
BENCHMARK(small_pair)->Arg(100)->Arg(2048)->Arg(100'000);

void large_pair(benchmark::State& state) {
  const auto bytes = std::size_t(state.range(0));
  for (auto _ : state) {
    void* p = std::malloc(bytes);
    use(p);
    std::free(p);
  }
}
BENCHMARK(large_pair)->Arg(256 << 10)->Arg(8 << 20)->Arg(64 << 20);

// A fresh block of each size, written whole and freed: what a tensor's life costs its program.
void touched_pair(benchmark::State& state) {
  const auto bytes = std::size_t(state.range(0));
  for (auto _ : state) {
    void* p = std::malloc(bytes);
    std::memset(p, 1, bytes);
    use(p);
    std::free(p);
  }
  state.SetBytesProcessed(std::int64_t(state.iterations()) * std::int64_t(bytes));
}
BENCHMARK(touched_pair)->Arg(256 << 10)->Arg(2 << 20)->Arg(8 << 20)->Arg(64 << 20)->Arg(256 << 20);

// Blocks of 256 KiB to 8 MiB come and go in random order; each is written whole.
void churn(benchmark::State& state) {
  constexpr std::size_t kSlots = 64;
  void* slots[kSlots] = {};
  std::uint64_t x = 88172645463325252u;
  std::int64_t total = 0;
  for (auto _ : state) {
    const std::uint64_t r = next(x);
    void*& slot = slots[r % kSlots];
    std::free(slot);
    const std::size_t bytes =
        (std::size_t(256) << 10) + (r >> 20) % ((std::size_t(256) << 10) << ((r >> 60) % 6));
    slot = std::malloc(bytes);
    std::memset(slot, 1, bytes);
    use(slot);
    total += std::int64_t(bytes);
  }
  state.SetBytesProcessed(total);
  for (void* p : slots) std::free(p);
}
BENCHMARK(churn);

void zeroed_pair(benchmark::State& state) {
  const auto bytes = std::size_t(state.range(0));
  for (auto _ : state) {
    void* p = std::calloc(bytes, 1);
    use(p);
    std::free(p);
  }
}
BENCHMARK(zeroed_pair)->Arg(256 << 10)->Arg(8 << 20);

// A buffer that grows by 64 KiB at a time.
void growing(benchmark::State& state) {
  for (auto _ : state) {
    char* p = nullptr;
    for (std::size_t bytes = 64 << 10; bytes <= std::size_t(64) << 20; bytes += 64 << 10) {
      p = static_cast<char*>(std::realloc(p, bytes));
      p[bytes - 1] = 1;
    }
    use(p);
    std::free(p);
  }
}
BENCHMARK(growing)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
