#include "io/uring_device.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>

#include "child.hpp"
#include "device_rigs.hpp"

using namespace terrace;
using namespace terrace::io;
using namespace terrace::io::test;

TEST_CASE("uring_device: a stale, doubled or foreign completion is refused and counted") {
  UringRig rig;
  if (rig.missing() != nullptr) return skip(rig.missing());
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  REQUIRE(run_one(rig.uring, {0, Op::read, memory.data(), 0, 4096}) == 0);
  const std::uint64_t stale = rig.uring.newest_tag();
  rig.uring.deliver_stray(stale);                     // the request has been completed
  rig.uring.deliver_stray(0);                         // no attempt has this tag
  rig.uring.deliver_stray(0xffff'ffff'ffff'ffffull);  // nor this slot
  // The slot is taken again while the strays arrive: they must not complete the new request.
  REQUIRE(rig.uring.submit({77, Op::read, memory.data(), 0, 4096}).ok());
  CHECK(rig.uring.newest_tag() != stale);
  const auto got = drain(rig.uring);
  REQUIRE(got.size() == 1);
  CHECK(got[0].id == 77);
  Completion none[4];
  for (int i = 0; i < 100 && rig.uring.counters().refused_completions < 3; i++)
    CHECK(rig.uring.poll(none) == 0);
  CHECK(rig.uring.counters().refused_completions == 3);
  CHECK(rig.uring.counters().errors == 0);
}

TEST_CASE("uring_device: one system call hands over a whole batch, and the queue can hold every completion") {
  UringRig rig(200);
  if (rig.missing() != nullptr) return skip(rig.missing());
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  CHECK(rig.uring.completion_entries() >= rig.uring.depth());
  for (std::uint64_t i = 0; i < 200; i++)
    REQUIRE(rig.uring.submit({i, Op::read, memory.data() + i * 4096, i * 4096, 4096}).ok());
  CHECK(rig.uring.counters().system_calls == 0);
  rig.uring.flush();
  CHECK(rig.uring.counters().system_calls == 1);
  rig.uring.flush();
  CHECK(rig.uring.counters().system_calls == 1);
  CHECK(drain(rig.uring).size() == 200);
}

TEST_CASE("uring_device: a file cut short under its reader gives an error within a second") {
  UringRig rig;
  if (rig.missing() != nullptr) return skip(rig.missing());
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  rig.file.truncate(kMiB + 1000);  // an end within a sector: O_DIRECT gives an odd count there
  const std::uint64_t start = monotonic_ns();
  CHECK(run_one(rig.uring, {0, Op::read, memory.data(), 0, std::uint32_t(kMiB)}) == 0);
  CHECK(run_one(rig.uring, {0, Op::read, memory.data(), kMiB - 65536, std::uint32_t(kMiB)}) == EIO);
  CHECK(run_one(rig.uring, {0, Op::read, memory.data(), kMiB, 4096}) == EIO);
  CHECK(monotonic_ns() - start < kNsPerS);
  CHECK(rig.uring.counters().resumed_short >= 1);
}

namespace {

// Each attempt moves one page and the next one gives EAGAIN.
struct PageByPage final : Injector {
  bool again = false;
  std::uint32_t limit(const Request&, std::uint32_t, std::uint32_t length) override {
    return std::min(length, 4096u);
  }
  long alter(const Request&, std::uint32_t, long raw) override {
    again = !again;
    return again ? raw : -EAGAIN;
  }
};

}  // namespace

TEST_CASE("uring_device: 16 MiB with a part and EAGAIN at each page boundary arrive whole, both ways") {
  UringRig rig;
  if (rig.missing() != nullptr) return skip(rig.missing());
  constexpr std::uint32_t kBytes = 16 * kMiB;
  rig.file.truncate(kBytes);
  IoMemory memory;
  REQUIRE(memory.map(2 * kBytes).ok());
  fill(memory.data(), kBytes, 3);
  // Written once before, so that single pages need no new extents, which would take seconds.
  CHECK(run_one(rig.uring, {0, Op::write, memory.data() + kBytes, 0, kBytes}) == 0);
  PageByPage injector;
  rig.uring.set_injector(&injector);
  CHECK(run_one(rig.uring, {0, Op::write, memory.data(), 0, kBytes}) == 0);
  rig.uring.set_injector(nullptr);
  CHECK(run_one(rig.uring, {0, Op::read, memory.data() + kBytes, 0, kBytes}) == 0);
  CHECK(std::memcmp(memory.data(), memory.data() + kBytes, kBytes) == 0);
  std::memset(memory.data() + kBytes, 0, kBytes);
  rig.uring.set_injector(&injector);
  CHECK(run_one(rig.uring, {0, Op::read, memory.data() + kBytes, 0, kBytes}) == 0);
  CHECK(std::memcmp(memory.data(), memory.data() + kBytes, kBytes) == 0);
  CHECK(rig.uring.counters().resumed_short == 2 * (kBytes / 4096 - 1));
  CHECK(rig.uring.counters().errors == 0);
  rig.uring.set_injector(nullptr);
}

TEST_CASE("uring_device: a closed descriptor is a completion with EBADF") {
  ScratchFile file;
  const int fd = dup(file.fd());
  UringDevice device;
  if (Status s = device.open(fd, {}); !s.ok()) return skip(s.text);
  ::close(fd);
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  CHECK(run_one(device, {0, Op::write, memory.data(), 0, 4096}) == EBADF);
}

TEST_CASE("uring_device: where io_uring is forbidden or missing, open says so with its errno") {
  ScratchFile file;
  for (const auto& [errno_value, code] :
       {std::pair{EPERM, ErrorCode::no_permission}, {ENOSYS, ErrorCode::not_supported}})
    CHECK(in_child([&, e = errno_value, c = code] {
            if (!forbid({SYS_io_uring_setup, unsigned(e)})) return 3;
            UringDevice device;
            const Status s = device.open(file.fd(), {});
            if (s.code != c || s.errno_value != e || s.text[0] == 0) return 1;
            SyncDevice fallback;  // and the fallback serves
            IoMemory memory;
            if (!memory.map(2 * kMiB).ok() || !fallback.open(file.fd(), {.alignment = file.alignment()}).ok())
              return 2;
            return run_one(fallback, {0, Op::write, memory.data(), 0, 4096});
          }) == 0);
}

TEST_CASE("uring_device: when the kernel stops taking requests, those not handed over fail") {
  ScratchFile file;
  CHECK(in_child([&] {
          UringDevice device;
          if (!device.open(file.fd(), {.depth = 8, .alignment = file.alignment()}).ok()) return 0;
          IoMemory memory;
          if (!memory.map(2 * kMiB).ok()) return 2;
          if (!forbid({SYS_io_uring_enter, EPERM})) return 3;
          for (std::uint64_t i = 0; i < 8; i++)
            if (!device.submit({i, Op::read, memory.data() + i * 4096, 0, 4096}).ok()) return 4;
          const auto got = drain(device, 0, 2000);
          if (got.size() != 8) return 5;
          for (const Completion& c : got)
            if (c.errno_value != EPERM) return 6;
          return device.submit({9, Op::read, memory.data(), 0, 4096}).code == ErrorCode::io_error ? 0 : 7;
        }) == 0);
}

TEST_CASE(
    "uring_device: an ordinary user's locked-memory limit of 64 KiB is enough, and of 0 is told by name") {
  ScratchFile file;
  for (const std::uint64_t limit_bytes : {64 * kKiB, std::uint64_t{0}}) {
    CAPTURE(limit_bytes);
    const int status = in_child([&] {
      const rlimit limit{limit_bytes, limit_bytes};
      if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 3;
      if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 3;
      UringDevice device;
      SyncDevice fallback;
      IoMemory memory;
      if (!memory.map(2 * kMiB).ok()) return 2;
      const Status s = device.open(file.fd(), {.depth = 64, .alignment = file.alignment()});
      if (s.ok()) return run_one(device, {0, Op::write, memory.data(), 0, 65536});
      if (s.code == ErrorCode::no_permission || s.code == ErrorCode::not_supported) return 77;
      if (limit_bytes != 0 || s.code != ErrorCode::no_memory || !std::strstr(s.text, "ulimit -l")) return 1;
      if (!fallback.open(file.fd(), {.alignment = file.alignment()}).ok()) return 4;
      return run_one(fallback, {0, Op::write, memory.data(), 0, 65536});
    });
    if (status == 77) return skip("io_uring is not to be had for an ordinary user");
    CHECK(status == 0);
  }
}

TEST_CASE("uring_device: options out of range are refused") {
  ScratchFile file;
  UringDevice device;
  CHECK(device.open(file.fd(), {.depth = 0}).code == ErrorCode::invalid_argument);
  CHECK(device.open(file.fd(), {.depth = kMaxDepth + 1}).code == ErrorCode::invalid_argument);
  CHECK(device.open(file.fd(), {.alignment = 3}).code == ErrorCode::invalid_argument);
  CHECK(device.open(file.fd(), {.alignment = 0}).code == ErrorCode::invalid_argument);
}

TEST_CASE("io_memory: it is aligned to 2 MiB, populated, and says how much is huge") {
  IoMemory memory;
  REQUIRE(memory.map(5 * kMiB).ok());
  CHECK(memory.bytes() == 6 * kMiB);
  CHECK(std::uint64_t(memory.data()) % kChunkBytes == 0);
  const auto huge = memory.huge_bytes();
  if (!huge.ok()) return skip(huge.status().text);
  CHECK(huge.value() <= memory.bytes());
  CHECK(huge.value() % kChunkBytes == 0);
  MESSAGE("huge bytes " << huge.value() << " of " << memory.bytes());
  IoMemory taken = std::move(memory);
  CHECK(memory.data() == nullptr);
  CHECK(taken.data()[6 * kMiB - 1] == 0);
  CHECK(taken.map(0).code == ErrorCode::invalid_argument);
}
