// One suite over all block devices: what block_device.hpp promises.
#include <poll.h>

#include <algorithm>
#include <set>

#include "device_rigs.hpp"

using namespace terrace;
using namespace terrace::io;
using namespace terrace::io::test;

#define ALL_RIGS                                                                               \
  MemoryRig, SlowMemoryRig, SyncRig, UringRig, FaultyRig<MemoryRig>, FaultyRig<SlowMemoryRig>, \
      FaultyRig<SyncRig>, FaultyRig<UringRig>

TYPE_TO_STRING_AS("memory", MemoryRig);
TYPE_TO_STRING_AS("memory with latency", SlowMemoryRig);
TYPE_TO_STRING_AS("sync", SyncRig);
TYPE_TO_STRING_AS("io_uring", UringRig);
TYPE_TO_STRING_AS("faulty over memory", FaultyRig<MemoryRig>);
TYPE_TO_STRING_AS("faulty over memory with latency", FaultyRig<SlowMemoryRig>);
TYPE_TO_STRING_AS("faulty over sync", FaultyRig<SyncRig>);
TYPE_TO_STRING_AS("faulty over io_uring", FaultyRig<UringRig>);

#define RIG_OR_SKIP(...)                                    \
  Rig rig{__VA_ARGS__};                                     \
  if (rig.missing() != nullptr) return skip(rig.missing()); \
  BlockDevice& device = rig.device()

TEST_CASE_TEMPLATE("block_device: what was written is read back, also in pieces of another size", Rig,
                   ALL_RIGS) {
  RIG_OR_SKIP();
  IoMemory memory;
  REQUIRE(memory.map(4 * kMiB).ok());
  char* const source = memory.data();
  char* const target = memory.data() + 2 * kMiB;
  fill(source, 2 * kMiB, 1);
  CHECK(run_one(device, {0, Op::write, source, 4 * kMiB, std::uint32_t(2 * kMiB)}) == 0);
  std::vector<char> behind(2 * kMiB);
  rig.peek(4 * kMiB, behind.data(), behind.size());
  CHECK(std::memcmp(behind.data(), source, behind.size()) == 0);
  for (std::uint64_t at = 0; at < 2 * kMiB; at += 64 * kKiB)
    CHECK(run_one(device, {0, Op::read, target + at, 4 * kMiB + at, std::uint32_t(64 * kKiB)}) == 0);
  CHECK(std::memcmp(source, target, 2 * kMiB) == 0);
}

TEST_CASE_TEMPLATE("block_device: each request of a full queue completes once, with its own id", Rig,
                   ALL_RIGS) {
  RIG_OR_SKIP();
  CHECK(device.depth() == kRigDepth);
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  std::multiset<std::uint64_t> wanted, given;
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; round++) {
    for (std::uint32_t i = 0; i < device.depth(); i++) {
      const std::uint64_t id = random();  // any number is a good id
      wanted.insert(id);
      const Op op = random() % 2 ? Op::read : Op::write;
      REQUIRE(device.submit({id, op, memory.data() + i * 8 * kKiB, (random() % 512) * 8 * kKiB, 8192}).ok());
      REQUIRE(device.in_flight() <= device.depth());
    }
    for (const Completion& c : drain(device)) {
      CHECK(c.errno_value == 0);
      given.insert(c.id);
    }
  }
  CHECK(wanted == given);
  CHECK(device.in_flight() == 0);
  Completion none[4];
  CHECK(device.poll(none) == 0);
}

TEST_CASE_TEMPLATE("block_device: a full queue answers busy and takes more after a poll", Rig, ALL_RIGS) {
  RIG_OR_SKIP(3u);
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  for (std::uint64_t i = 0; i < 3; i++)
    REQUIRE(device.submit({i, Op::read, memory.data() + i * 4096, i * 4096, 4096}).ok());
  CHECK(device.submit({3, Op::read, memory.data(), 0, 4096}).code == ErrorCode::busy);
  CHECK(device.in_flight() == 3);
  Completion one;
  for (int i = 0; device.poll({&one, 1}) == 0 && i < 1000; i++) device.wait(100);
  CHECK(device.in_flight() == 2);
  CHECK(device.submit({3, Op::read, memory.data(), 0, 4096}).ok());
  CHECK(device.submit({4, Op::read, memory.data(), 0, 4096}).code == ErrorCode::busy);
  CHECK(drain(device).size() == 3);
}

TEST_CASE_TEMPLATE("block_device: a request that breaks the contract is refused and not in flight", Rig,
                   ALL_RIGS) {
  RIG_OR_SKIP();
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  const std::uint32_t unit = device.alignment();
  REQUIRE(unit >= 2);
  const Request bad[] = {
      {0, Op::read, memory.data(), 0, 0},
      {0, Op::read, nullptr, 0, unit},
      {0, Op::read, memory.data(), unit / 2, unit},
      {0, Op::read, memory.data() + unit / 2, 0, unit},
      {0, Op::write, memory.data(), 0, unit / 2},
      {0, Op::write, memory.data(), ~std::uint64_t{0} - unit + 1, unit},
      {0, Op(7), memory.data(), 0, unit},
  };
  for (const Request& request : bad) CHECK(device.submit(request).code == ErrorCode::invalid_argument);
  CHECK(device.in_flight() == 0);
}

TEST_CASE_TEMPLATE("block_device: a read beyond the end is an error at once, never a spin", Rig, ALL_RIGS) {
  RIG_OR_SKIP();
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  const std::uint64_t start = monotonic_ns();
  CHECK(run_one(device, {0, Op::read, memory.data(), kRigBytes, 65536}) == EIO);
  CHECK(run_one(device, {0, Op::read, memory.data(), kRigBytes - 32768, 65536}) == EIO);
  CHECK(monotonic_ns() - start < kNsPerS);
}

TEST_CASE_TEMPLATE("block_device: poll takes no more than it has room for", Rig, ALL_RIGS) {
  RIG_OR_SKIP();
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  for (std::uint64_t i = 0; i < 8; i++)
    REQUIRE(device.submit({i, Op::read, memory.data() + i * 4096, i * 4096, 4096}).ok());
  std::set<std::uint64_t> ids;
  while (device.in_flight() != 0) {
    device.wait(100);
    Completion guarded[3] = {{}, {~0ull, -1}, {~0ull, -1}};
    const std::size_t n = device.poll({guarded, 1});
    REQUIRE(n <= 1);
    CHECK(guarded[1].errno_value == -1);
    if (n == 1) CHECK(ids.insert(guarded[0].id).second);
  }
  CHECK(ids.size() == 8);
}

TEST_CASE_TEMPLATE("block_device: its descriptor polls readable when a completion is ready", Rig, ALL_RIGS) {
  RIG_OR_SKIP();
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  if (device.poll_descriptor() < 0) return;  // completions are ready without one
  pollfd p{device.poll_descriptor(), POLLIN, 0};
  CHECK(::poll(&p, 1, 0) == 0);
  REQUIRE(device.submit({1, Op::read, memory.data(), 0, 65536}).ok());
  device.flush();
  REQUIRE(::poll(&p, 1, 5000) == 1);
  CHECK(drain(device).size() == 1);
  CHECK(::poll(&p, 1, 0) == 0);
}

TEST_CASE_TEMPLATE("block_device: wait with nothing in flight returns at once", Rig, ALL_RIGS) {
  RIG_OR_SKIP();
  const std::uint64_t start = monotonic_ns();
  device.wait(5000);
  CHECK(monotonic_ns() - start < 2 * kNsPerS);
}

TEST_CASE_TEMPLATE("block_device: random reads and writes agree with a shadow copy", Rig, ALL_RIGS) {
  RIG_OR_SKIP();
  constexpr std::uint64_t kUnit = 16 * kKiB, kUnits = kRigBytes / kUnit;
  IoMemory memory;
  REQUIRE(memory.map(kRigDepth * kUnit).ok());
  std::vector<char> shadow(kRigBytes, 0);
  std::vector<bool> unit_in_flight(kUnits, false);
  std::vector<std::uint64_t> unit_of(kRigDepth);
  std::vector<Op> op_of(kRigDepth);
  std::vector<std::uint32_t> free;
  for (std::uint32_t i = 0; i < kRigDepth; i++) free.push_back(i);
  std::mt19937_64 random(11);
  int done = 0;
  while (done < 3000) {
    while (!free.empty()) {
      const std::uint64_t unit = random() % kUnits;
      if (unit_in_flight[unit]) continue;
      const std::uint32_t slot = free.back();
      free.pop_back();
      char* const buffer = memory.data() + slot * kUnit;
      op_of[slot] = random() % 2 ? Op::read : Op::write;
      unit_of[slot] = unit;
      unit_in_flight[unit] = true;
      fill(buffer, kUnit, random());
      if (op_of[slot] == Op::write) std::memcpy(shadow.data() + unit * kUnit, buffer, kUnit);
      REQUIRE(device.submit({slot, op_of[slot], buffer, unit * kUnit, std::uint32_t(kUnit)}).ok());
    }
    device.wait(1000);
    Completion some[7];
    const std::size_t n = device.poll(some);
    for (std::size_t i = 0; i < n; i++, done++) {
      const auto slot = std::uint32_t(some[i].id);
      REQUIRE(some[i].errno_value == 0);
      if (op_of[slot] == Op::read)
        REQUIRE(std::memcmp(memory.data() + slot * kUnit, shadow.data() + unit_of[slot] * kUnit, kUnit) == 0);
      unit_in_flight[unit_of[slot]] = false;
      free.push_back(slot);
    }
  }
  drain(device);
  std::vector<char> behind(kRigBytes);
  rig.peek(0, behind.data(), behind.size());
  CHECK(std::memcmp(behind.data(), shadow.data(), kRigBytes) == 0);
}
