// P5: random 64 KiB and sequential reads and writes through io/, against a bare io_uring ring and against
// pread.
//
// bench_io [--dir DIR] [--size-mib N] [--rounds N] [--seconds S] [--json]   the disk rows
// bench_io --hash [--json]                                                  the content hash, by variant
//
// All three ways run in this process, on one written file, interleaved in an order that rotates by round. A
// row's figures are medians over the rounds; its ratio is the median of the rounds' ratios, so a disk that
// drifts from round to round does not decide it. Every way checks a stamp of each page it reads inside the
// timed part (the same work for all), and the whole file is checked byte by byte at the end. Exit status: 0
// all rows hold, 1 one does not, 2 it could not be measured or bytes were wrong, 77 no io_uring.
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "io/checksum_variants.hpp"
#include "io/io_memory.hpp"
#include "io/uring_device.hpp"

using namespace terrace;

namespace {

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_io: %s\n", text.c_str());
  std::exit(2);
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

// ---- contents: a page is a stamp of its offset, then bytes that depend on the place in the page only

constexpr std::uint64_t kStampKey = 0x7465727261636521;  // "terrace!"

std::uint64_t stamp_of(std::uint64_t offset) { return (offset ^ kStampKey) * 0x9e3779b97f4a7c15u; }

void stamp(char* bytes, std::uint64_t offset, std::uint64_t length) {
  for (std::uint64_t at = 0; at < length; at += kPageBytes) {
    const std::uint64_t s = stamp_of(offset + at);
    std::memcpy(bytes + at, &s, sizeof s);
  }
}

void check_stamps(const char* bytes, std::uint64_t offset, std::uint64_t length) {
  for (std::uint64_t at = 0; at < length; at += kPageBytes) {
    std::uint64_t s;
    std::memcpy(&s, bytes + at, sizeof s);
    if (s != stamp_of(offset + at)) fail("wrong bytes at offset " + std::to_string(offset + at));
  }
}

std::vector<char> page_pattern() {
  std::vector<char> page(kPageBytes);
  std::mt19937_64 random(1);
  for (char& c : page) c = char(random());
  return page;
}

void fill(char* bytes, std::uint64_t length) {
  const auto page = page_pattern();
  for (std::uint64_t at = 0; at < length; at += kPageBytes) std::memcpy(bytes + at, page.data(), kPageBytes);
}

void check_all(const char* bytes, std::uint64_t offset, std::uint64_t length) {
  static const auto page = page_pattern();
  check_stamps(bytes, offset, length);
  for (std::uint64_t at = 0; at < length; at += kPageBytes)
    if (std::memcmp(bytes + at + 8, page.data() + 8, kPageBytes - 8) != 0)
      fail("wrong bytes at offset " + std::to_string(offset + at));
}

// ---- work: a stream of requests of one size

struct Work {
  const char* name;
  io::Op op;
  std::uint32_t length;
  std::uint32_t depth;
  std::uint64_t burst_bytes;  // the queue runs empty after so much (0: never)
};

constexpr Work kWorks[] = {
    {"random 64 KiB reads", io::Op::read, 64 << 10, 32, 0},
    {"random 64 KiB writes", io::Op::write, 64 << 10, 32, 0},
    {"256 MiB read", io::Op::read, 2 << 20, 4, 256 << 20},
};

// Offsets of one round: the same for each way. Without bursts they are random, else each burst is one run of
// the file.
class Offsets {
 public:
  Offsets(const Work& work, std::uint64_t file_bytes, std::uint64_t seed)
      : work_(work), file_bytes_(file_bytes), random_(seed) {}
  std::uint64_t next() {
    if (work_.burst_bytes == 0) return random_() % (file_bytes_ / work_.length) * work_.length;
    if (left_bytes_ == 0) {
      left_bytes_ = work_.burst_bytes;
      at_ = random_() % (file_bytes_ / work_.burst_bytes) * work_.burst_bytes;
    }
    const std::uint64_t offset = at_;
    at_ += work_.length;
    left_bytes_ -= work_.length;
    return offset;
  }
  bool burst_is_over() const { return work_.burst_bytes != 0 && left_bytes_ == 0; }

 private:
  const Work& work_;
  std::uint64_t file_bytes_;
  std::mt19937_64 random_;
  std::uint64_t at_ = 0, left_bytes_ = 0;
};

// Runs work for some seconds with a queue that `Queue` gives: submit(slot, buffer, offset) and reap(f(slot)).
template <typename Queue>
double run_queued(Queue& queue, const Work& work, Offsets offsets, char* buffers, double seconds) {
  std::vector<std::uint32_t> free;
  std::vector<std::uint64_t> offset_of(work.depth);
  for (std::uint32_t i = 0; i < work.depth; i++) free.push_back(i);
  std::uint64_t moved_bytes = 0;
  const double start = now_s();
  bool begun_burst = false;
  for (;;) {
    const bool time_left = now_s() - start < seconds;
    while (!free.empty() && (begun_burst || time_left)) {
      if (begun_burst && offsets.burst_is_over()) {
        if (free.size() != work.depth) break;  // the burst's last requests first
        begun_burst = false;
        continue;
      }
      const std::uint32_t slot = free.back();
      free.pop_back();
      const std::uint64_t offset = offset_of[slot] = offsets.next();
      begun_burst = work.burst_bytes != 0;
      char* const buffer = buffers + std::uint64_t(slot) * work.length;
      if (work.op == io::Op::write) stamp(buffer, offset, work.length);
      queue.submit(slot, buffer, offset);
    }
    if (free.size() == work.depth) break;
    queue.reap([&](std::uint32_t slot) {
      if (work.op == io::Op::read)
        check_stamps(buffers + std::uint64_t(slot) * work.length, offset_of[slot], work.length);
      moved_bytes += work.length;
      free.push_back(slot);
    });
  }
  return double(moved_bytes) / (now_s() - start) / 1e9;
}

struct TerraceQueue {
  io::UringDevice& device;
  const Work& work;
  void submit(std::uint32_t slot, char* buffer, std::uint64_t offset) {
    if (!device.submit({slot, work.op, buffer, offset, work.length}).ok()) fail("a request was refused");
  }
  template <typename F>
  void reap(F f) {
    io::Completion done[64];
    device.wait(1000);
    const std::size_t n = device.poll(done);
    for (std::size_t i = 0; i < n; i++) {
      if (done[i].errno_value != 0) fail("a request failed");
      f(std::uint32_t(done[i].id));
    }
  }
};

struct BareQueue {
  io_uring& ring;
  int fd;
  const Work& work;
  void submit(std::uint32_t slot, char* buffer, std::uint64_t offset) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring);
    if (work.op == io::Op::read)
      io_uring_prep_read(sqe, fd, buffer, work.length, offset);
    else
      io_uring_prep_write(sqe, fd, buffer, work.length, offset);
    io_uring_sqe_set_data64(sqe, slot);
  }
  template <typename F>
  void reap(F f) {
    io_uring_submit_and_wait(&ring, 1);
    io_uring_cqe* cqe;
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
      if (cqe->res != int(work.length)) fail("the bare ring moved less than asked");
      f(std::uint32_t(cqe->user_data));
      io_uring_cqe_seen(&ring, cqe);
    }
  }
};

double run_pread(int fd, const Work& work, Offsets offsets, char* buffer, double seconds) {
  std::uint64_t moved_bytes = 0;
  const double start = now_s();
  do {
    const std::uint64_t offset = offsets.next();
    ssize_t n;
    if (work.op == io::Op::write) {
      stamp(buffer, offset, work.length);
      n = pwrite(fd, buffer, work.length, off_t(offset));
    } else {
      n = pread(fd, buffer, work.length, off_t(offset));
      check_stamps(buffer, offset, work.length);
    }
    if (n != ssize_t(work.length)) fail("pread or pwrite moved less than asked");
    moved_bytes += work.length;
  } while ((work.burst_bytes != 0 && !offsets.burst_is_over()) || now_s() - start < seconds);
  return double(moved_bytes) / (now_s() - start) / 1e9;
}

// ---- rows

struct Printer {
  bool json;
  bool all_hold = true;
  // target < 0: the row informs only.
  void row(const std::string& name, double terrace, double peer, const char* peer_name, double ratio,
           double target) {
    const bool holds = target < 0 || ratio >= target;
    all_hold = all_hold && holds;
    if (json) {
      std::printf(
          "{\"name\": \"%s\", \"terrace\": %.3f, \"peer\": %.3f, \"peer_name\": \"%s\", \"unit\": \"GB/s\", "
          "\"ratio\": %.3f, ",
          name.c_str(), terrace, peer, peer_name, ratio);
      if (target < 0)
        std::printf("\"target\": null, \"holds\": null}\n");
      else
        std::printf("\"target\": %.2f, \"holds\": %s}\n", target, holds ? "true" : "false");
    } else {
      std::printf("%-34s %7.2f GB/s  %-32s %7.2f GB/s  ratio %5.2f", name.c_str(), terrace, peer_name, peer,
                  ratio);
      if (target >= 0) std::printf("  target %.2f  %s", target, holds ? "holds" : "DOES NOT HOLD");
      std::printf("\n");
    }
    std::fflush(stdout);
  }
};

struct Options {
  std::string directory = ".";
  std::uint64_t size_bytes = 2 * kGiB;
  int rounds = 7;
  double seconds = 0.5;
  bool json = false, hash = false;
};

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> r;
  for (std::size_t i = 0; i < a.size(); i++) r.push_back(a[i] / b[i]);
  return median(r);
}

int disk_rows(const Options& options) {
  const int fd = open(options.directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) fail("no file for O_DIRECT in " + options.directory + ": " + std::strerror(errno));

  constexpr std::uint64_t kBufferBytes = 8 * kMiB;
  io::IoMemory huge, bare_huge;
  if (!huge.map(kBufferBytes).ok() || !bare_huge.map(kBufferBytes).ok()) fail("no memory");
  char* const small = static_cast<char*>(
      mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (small == MAP_FAILED) fail("no memory");
  madvise(small, kBufferBytes, MADV_NOHUGEPAGE);
  for (char* b : {huge.data(), bare_huge.data(), small}) fill(b, kBufferBytes);
  if (auto r = huge.huge_bytes(); !r.ok() || r.value() < kBufferBytes)
    std::fprintf(stderr, "bench_io: the kernel gave no whole huge pages: expect the speed of small ones\n");

  if (posix_fallocate(fd, 0, off_t(options.size_bytes)) != 0) fail("no space in " + options.directory);
  for (std::uint64_t at = 0; at < options.size_bytes; at += kBufferBytes) {
    stamp(huge.data(), at, kBufferBytes);
    if (pwrite(fd, huge.data(), kBufferBytes, off_t(at)) != ssize_t(kBufferBytes))
      fail("the file could not be written");
  }
  fdatasync(fd);

  io::UringDevice device;
  if (Status s = device.open(fd, {.depth = 64, .alignment = 4096}); !s.ok()) {
    std::fprintf(stderr, "bench_io: %s\n", s.text);
    return 77;
  }
  io_uring ring;
  if (io_uring_queue_init(64, &ring, 0) != 0) return 77;

  Printer printer{options.json};
  for (const Work& work : kWorks) {
    std::vector<double> terrace, bare, plain;
    for (int round = -1; round < options.rounds; round++) {  // round -1 warms up
      for (int turn = 0; turn < 3; turn++) {
        const Offsets offsets(work, options.size_bytes, std::uint64_t(round + 2));
        const double seconds = round < 0 ? options.seconds / 2 : options.seconds;
        double got = 0;
        std::vector<double>* into = nullptr;
        switch ((round + 1 + turn) % 3) {
          case 0: {
            TerraceQueue queue{device, work};
            got = run_queued(queue, work, offsets, huge.data(), seconds);
            into = &terrace;
            break;
          }
          case 1: {
            BareQueue queue{ring, fd, work};
            got = run_queued(queue, work, offsets, bare_huge.data(), seconds);
            into = &bare;
            break;
          }
          case 2:
            got = run_pread(fd, work, offsets, small, seconds);
            into = &plain;
            break;
        }
        if (round >= 0) into->push_back(got);
      }
    }
    printer.row(work.name, median(terrace), median(bare), "bare ring, huge pages",
                median_ratio(terrace, bare), 0.90);
    printer.row(work.name, median(terrace), median(plain),
                work.op == io::Op::read ? "pread, 4 KiB pages" : "pwrite, 4 KiB pages",
                median_ratio(terrace, plain), 1.0);
  }
  for (std::uint64_t at = 0; at < options.size_bytes; at += kBufferBytes) {
    if (pread(fd, huge.data(), kBufferBytes, off_t(at)) != ssize_t(kBufferBytes))
      fail("the file could not be read back");
    check_all(huge.data(), at, kBufferBytes);
  }
  io_uring_queue_exit(&ring);
  close(fd);
  return printer.all_hold ? 0 : 1;
}

// The hash of 2 MiB blocks that are not in the cache: each variant against the first, and pieces against one
// shot.
int hash_rows(const Options& options) {
  constexpr std::uint64_t kArea = 256 * kMiB, kBlock = 2 * kMiB, kPiece = 256 * kKiB;
  io::IoMemory area;
  if (!area.map(kArea).ok()) fail("no memory");
  fill(area.data(), kArea);
  const io::ChecksumVariant* variants[3];
  const std::size_t n = io::usable_checksum_variants(variants);
  std::vector<std::vector<double>> whole(n), pieces(n);
  std::uint64_t sink = 0;
  for (int round = 0; round < options.rounds; round++)
    for (std::size_t v = 0; v < n; v++) {
      double start = now_s();
      for (std::uint64_t at = 0; at < kArea; at += kBlock)
        sink ^= variants[v]->hash(area.data() + at, kBlock).low;
      whole[v].push_back(double(kArea) / (now_s() - start) / 1e9);
      start = now_s();
      for (std::uint64_t at = 0; at < kArea; at += kBlock) {
        alignas(64) unsigned char state[io::kHasherStateBytes];
        variants[v]->reset(state);
        for (std::uint64_t p = 0; p < kBlock; p += kPiece)
          variants[v]->update(state, area.data() + at + p, kPiece);
        sink ^= variants[v]->digest(state).low;
      }
      pieces[v].push_back(double(kArea) / (now_s() - start) / 1e9);
    }
  if (sink != 0) fail("pieces and the whole hash differently");  // each round adds each value twice
  Printer printer{options.json};
  for (std::size_t v = 0; v < n; v++) {
    printer.row(std::string("hash ") + variants[v]->name, median(whole[v]), median(whole[0]), "sse2",
                median_ratio(whole[v], whole[0]), -1);
    printer.row(std::string("hash by 256 KiB, ") + variants[v]->name, median(pieces[v]), median(whole[v]),
                "one shot", median_ratio(pieces[v], whole[v]), 0.95);
  }
  return printer.all_hold ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i++) {
    const std::string a = argv[i];
    auto value = [&] { return i + 1 < argc ? argv[++i] : (fail(a + " needs a value"), ""); };
    if (a == "--json")
      options.json = true;
    else if (a == "--hash")
      options.hash = true;
    else if (a == "--dir")
      options.directory = value();
    else if (a == "--size-mib")
      options.size_bytes = std::strtoull(value(), nullptr, 10) * kMiB;
    else if (a == "--rounds")
      options.rounds = std::atoi(value());
    else if (a == "--seconds")
      options.seconds = std::atof(value());
    else
      fail("usage: bench_io [--dir DIR] [--size-mib N] [--rounds N] [--seconds S] [--hash] [--json]");
  }
  if (options.size_bytes < 512 * kMiB || options.size_bytes % (256 * kMiB) != 0 || options.rounds < 1 ||
      options.seconds <= 0)
    fail("--size-mib is a multiple of 256 from 512 on, --rounds and --seconds are above 0");
  return options.hash ? hash_rows(options) : disk_rows(options);
}
