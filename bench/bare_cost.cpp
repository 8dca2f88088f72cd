// What a moved byte costs the CPU at the least: one XXH3 of it, and one UFFDIO_MOVE of the block that it is
// in.
//
// bare_cost BLOCK_BYTES   prints `hash_gbs H move_us M variant V` (median of several rounds; move_us is one
// block). Blocks of 2 MiB are whole huge pages, smaller ones are pieces of small pages, as they are in a
// program.
#define XXH_INLINE_ALL
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/linux_abi.hpp"

namespace {

constexpr std::size_t kHuge = 2u << 20;
constexpr std::size_t kArea = 256u << 20;  // far beyond the caches

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

char* map_aligned() {
  void* m = mmap(nullptr, kArea + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) std::exit(3);
  return reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(m) + kHuge - 1) & ~(kHuge - 1));
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t block = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : kHuge;
  char *a = map_aligned(), *b = map_aligned();
  const int advice = block >= kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
  madvise(a, kArea, advice);
  madvise(b, kArea, advice);
  std::memset(a, 0x5a, kArea);

  std::vector<double> hash_gbs, move_us;
  std::uint64_t sink = 0;
  for (int round = 0; round < 7; ++round) {
    const double start = now();
    for (std::size_t at = 0; at < kArea; at += block) sink ^= XXH3_128bits(a + at, block).low64;
    hash_gbs.push_back(kArea / (now() - start) / 1e9);
  }

  const int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = terrace::abi::kFeatureMove;
  if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0) {
    std::fprintf(stderr, "bare_cost: no userfaultfd with MOVE here\n");
    return 77;
  }
  for (char* p : {a, b}) {
    uffdio_register r{};
    r.range = {reinterpret_cast<std::uint64_t>(p), kArea};
    r.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (ioctl(fd, UFFDIO_REGISTER, &r) != 0) return 77;
  }
  char *from = a, *to = b;
  for (int round = 0; round < 7; ++round) {
    const double start = now();
    for (std::size_t at = 0; at < kArea; at += block) {
      terrace::abi::UffdioMove m{};
      m.dst = reinterpret_cast<std::uint64_t>(to + at);
      m.src = reinterpret_cast<std::uint64_t>(from + at);
      m.len = block;
      while (ioctl(fd, terrace::abi::kUffdioMove, &m) != 0) {
        if (errno != EAGAIN) {
          std::perror("bare_cost: move");
          return 1;
        }
        if (m.move > 0) m.dst += m.move, m.src += m.move, m.len -= m.move;
      }
    }
    move_us.push_back((now() - start) * 1e6 / (kArea / block));
    std::swap(from, to);
  }
  std::printf("hash_gbs %.2f move_us %.3f variant %s sink %d\n", median(hash_gbs), median(move_us),
              XXH_VECTOR == XXH_AVX512 ? "avx512"
              : XXH_VECTOR == XXH_AVX2 ? "avx2"
                                       : "sse2",
              static_cast<int>(sink & 1));
  return 0;
}
