// What the disk gives at its best: io_uring, O_DIRECT, 2 MiB requests from huge pages, on a file that was
// written before.
//
// disk_probe FILE FILE_BYTES SECONDS BLOCK_BYTES WRITE_PERCENT
// Tries a few depths, SECONDS each, and prints the best: `read_gbs R write_gbs W total_gbs T depth D`. The
// file is made (and written once) when it is not there; the caller removes it. WRITE_PERCENT of the requests
// write.
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t kHuge = 2u << 20;
constexpr unsigned kDepthMax = 32;

struct Speed {
  double read_gbs = 0, write_gbs = 0;
  double total() const { return read_gbs + write_gbs; }
};

struct Probe {
  int file = -1;
  std::size_t file_bytes = 0, block_bytes = 0;
  char* buffers = nullptr;  // kDepthMax of them, each at its own huge page or a part of one
  io_uring ring{};

  char* buffer(unsigned i) const { return buffers + i * block_bytes; }
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs one mix for `seconds`; sequential halves of the file for 2 MiB blocks, random places for smaller ones.
Speed run(Probe& p, unsigned depth, double seconds, unsigned write_percent) {
  const std::size_t blocks = p.file_bytes / p.block_bytes;
  const bool random = p.block_bytes < kHuge;
  std::vector<unsigned> free_slots;
  for (unsigned i = 0; i < depth; ++i) free_slots.push_back(i);
  std::vector<bool> writes(depth);
  std::size_t read_at = 0, write_at = blocks / 2;
  std::uint64_t state = 88172645463325252u, read_bytes = 0, write_bytes = 0;
  unsigned in_flight = 0, acc = 0;
  const double start = now();
  for (;;) {
    while (!free_slots.empty() && now() - start < seconds) {
      const unsigned slot = free_slots.back();
      free_slots.pop_back();
      acc += write_percent;
      const bool write = acc >= 100;
      if (write) acc -= 100;
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      std::size_t block = random ? state % blocks : (write ? write_at++ : read_at++) % blocks;
      io_uring_sqe* e = io_uring_get_sqe(&p.ring);
      if (write)
        io_uring_prep_write(e, p.file, p.buffer(slot), p.block_bytes, block * p.block_bytes);
      else
        io_uring_prep_read(e, p.file, p.buffer(slot), p.block_bytes, block * p.block_bytes);
      io_uring_sqe_set_data64(e, slot);
      writes[slot] = write;
      ++in_flight;
    }
    if (in_flight == 0) break;
    io_uring_submit_and_wait(&p.ring, 1);
    io_uring_cqe* c = nullptr;
    while (io_uring_peek_cqe(&p.ring, &c) == 0) {
      const auto slot = static_cast<unsigned>(io_uring_cqe_get_data64(c));
      if (c->res != static_cast<int>(p.block_bytes)) {
        std::fprintf(stderr, "disk_probe: transfer gave %d\n", c->res);
        std::exit(1);
      }
      (writes[slot] ? write_bytes : read_bytes) += p.block_bytes;
      free_slots.push_back(slot);
      --in_flight;
      io_uring_cqe_seen(&p.ring, c);
    }
  }
  const double s = now() - start;
  return {read_bytes / s / 1e9, write_bytes / s / 1e9};
}

void write_whole_file(Probe& p) {
  for (std::size_t at = 0; at < p.file_bytes; at += kHuge) {
    if (pwrite(p.file, p.buffers, kHuge, static_cast<off_t>(at)) != static_cast<ssize_t>(kHuge)) {
      std::perror("disk_probe: write");
      std::exit(1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("disk_probe FILE FILE_BYTES SECONDS BLOCK_BYTES WRITE_PERCENT\n", stderr);
    return 2;
  }
  Probe p;
  p.file_bytes = std::strtoull(argv[2], nullptr, 10) / kHuge * kHuge;
  const double seconds = std::atof(argv[3]);
  p.block_bytes = std::strtoull(argv[4], nullptr, 10);
  const auto write_percent = static_cast<unsigned>(std::atoi(argv[5]));
  const std::size_t arena = kDepthMax * (p.block_bytes < kHuge ? kHuge : p.block_bytes);
  void* map = mmap(nullptr, arena + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return 3;
  p.buffers = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(map) + kHuge - 1) & ~(kHuge - 1));
  madvise(p.buffers, arena, MADV_HUGEPAGE);
  std::memset(p.buffers, 0x5a, arena);
  p.file = open(argv[1], O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  if (p.file < 0) {
    std::perror("disk_probe: open");
    return 3;
  }
  if (lseek(p.file, 0, SEEK_END) < static_cast<off_t>(p.file_bytes)) write_whole_file(p);
  if (int r = io_uring_queue_init(64, &p.ring, 0); r < 0) {
    std::fprintf(stderr, "disk_probe: no io_uring: %s\n", std::strerror(-r));
    return 77;
  }
  Speed best;
  unsigned best_depth = 0;
  const std::vector<unsigned> depths =
      p.block_bytes < kHuge ? std::vector<unsigned>{16, 32} : std::vector<unsigned>{2, 4, 8};
  for (unsigned depth : depths) {
    const Speed s = run(p, depth, seconds, write_percent);
    if (s.total() > best.total()) best = s, best_depth = depth;
  }
  std::printf("read_gbs %.3f write_gbs %.3f total_gbs %.3f depth %u\n", best.read_gbs, best.write_gbs,
              best.total(), best_depth);
  return 0;
}
