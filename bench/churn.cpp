// malloc, touch, free of blocks from 256 KiB to 8 MiB, as programs do that make and drop buffers: plain
// malloc, nothing of Terrace in it. Forty live blocks, replaced in random order; every page of a new block is
// written once and its first word is checked when it dies. Prints `median_s` over rounds and `peak_rss_mib`.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  constexpr int kLive = 40, kReplacements = 600;
  struct Block {
    unsigned char* bytes = nullptr;
    std::size_t count = 0;
    std::uint64_t tag = 0;
  };
  std::vector<Block> live(kLive);
  std::vector<double> seconds;
  std::uint64_t state = 1, bad = 0;
  const auto next = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  };
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < kReplacements; ++k) {
      Block& b = live[next() % kLive];
      if (b.bytes != nullptr) {
        bad |= *reinterpret_cast<std::uint64_t*>(b.bytes) ^ b.tag;
        std::free(b.bytes);
      }
      // sizes spread evenly over the octaves, not over the bytes
      const std::size_t octave = std::size_t{256 << 10} << (next() % 5);
      b.count = octave + next() % octave;
      b.count = std::min(b.count, std::size_t{8u << 20});
      b.bytes = static_cast<unsigned char*>(std::malloc(b.count));
      if (b.bytes == nullptr) return 3;
      b.tag = next();
      for (std::size_t at = 0; at < b.count; at += 4096) b.bytes[at] = static_cast<unsigned char>(at >> 12);
      *reinterpret_cast<std::uint64_t*>(b.bytes) = b.tag;
    }
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  for (Block& b : live) std::free(b.bytes);
  std::sort(seconds.begin(), seconds.end());
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  std::printf("median_s %.6f min_s %.6f max_s %.6f peak_rss_mib %ld checksum %s\n",
              seconds[seconds.size() / 2], seconds.front(), seconds.back(), use.ru_maxrss / 1024,
              bad == 0 ? "right" : "WRONG");
  return bad == 0 ? 0 : 1;
}
