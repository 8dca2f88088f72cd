// Every fault on every device: those below the contract stay hidden, those at the contract show as the rule
// says.
#include "device_rigs.hpp"

using namespace terrace;
using namespace terrace::io;
using namespace terrace::io::test;

#define REAL_RIGS MemoryRig, SlowMemoryRig, SyncRig, UringRig
TYPE_TO_STRING_AS("memory", MemoryRig);
TYPE_TO_STRING_AS("memory with latency", SlowMemoryRig);
TYPE_TO_STRING_AS("sync", SyncRig);
TYPE_TO_STRING_AS("io_uring", UringRig);

namespace {

constexpr std::uint32_t kLength = 256 * kKiB;

// A faulty device, a buffer of old bytes that lie in the file from 0 on (twice kLength), and one of new
// bytes.
template <typename Inner>
struct Scene {
  FaultyRig<Inner> rig;
  IoMemory memory;
  char* old_bytes = nullptr;
  char* new_bytes = nullptr;
  char* target = nullptr;
  BlockDevice* device = nullptr;

  Scene() {
    if (rig.missing() != nullptr) return;
    REQUIRE(memory.map(2 * kMiB).ok());
    device = &rig.device();
    old_bytes = memory.data();
    new_bytes = old_bytes + 2 * kLength;
    target = new_bytes + kLength;
    fill(old_bytes, 2 * kLength, 1);
    fill(new_bytes, kLength, 2);
    REQUIRE(run_one(*device, {0, Op::write, old_bytes, 0, 2 * kLength}) == 0);
  }
  void rules(std::initializer_list<FaultRule> r) {
    REQUIRE(rig.faulty.set_rules(std::span(r.begin(), r.size())).ok());
  }
  int read(std::uint64_t offset = 0) {
    std::memset(target, 0x5a, kLength);
    return run_one(*device, {0, Op::read, target, offset, kLength});
  }
  int write() { return run_one(*device, {0, Op::write, new_bytes, 0, kLength}); }
  bool target_is(const char* bytes) { return std::memcmp(target, bytes, kLength) == 0; }
  bool file_is(const char* bytes) {
    std::vector<char> behind(kLength);
    rig.peek(0, behind.data(), kLength);
    return std::memcmp(behind.data(), bytes, kLength) == 0;
  }
};

}  // namespace

#define SCENE_OR_SKIP() \
  Scene<Rig> scene;     \
  if (scene.rig.missing() != nullptr) return skip(scene.rig.missing())

TEST_CASE_TEMPLATE("faults: EIO once fails one request and moves nothing, then all is well", Rig, REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::eio, .times = 1}});
  CHECK(scene.write() == EIO);
  CHECK(scene.file_is(scene.old_bytes));
  CHECK(scene.write() == 0);
  CHECK(scene.file_is(scene.new_bytes));
  CHECK(scene.rig.faulty.strikes() == 1);
}

TEST_CASE_TEMPLATE("faults: EIO for ever on a range fails each request there and none elsewhere", Rig,
                   REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::eio, .on = FaultOn::reads, .begin = kLength, .end = kLength + 1}});
  for (int i = 0; i < 5; i++) CHECK(scene.read(kLength) == EIO);
  CHECK(scene.read(0) == 0);
  CHECK(scene.target_is(scene.old_bytes));
  CHECK(scene.rig.faulty.strikes() == 5);
}

TEST_CASE_TEMPLATE("faults: ENOSPC strikes writes only, and the old bytes stay", Rig, REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::no_space}});
  CHECK(scene.write() == ENOSPC);
  CHECK(scene.read() == 0);
  CHECK(scene.target_is(scene.old_bytes));
}

TEST_CASE_TEMPLATE("faults: a bit flip changes one bit of what a read gives", Rig, REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::bit_flip, .times = 1}});
  CHECK(scene.read() == 0);
  int bits = 0;
  for (std::uint32_t i = 0; i < kLength; i++)
    bits += __builtin_popcount(static_cast<unsigned char>(scene.target[i] ^ scene.old_bytes[i]));
  CHECK(bits == 1);
  CHECK(scene.read() == 0);
  CHECK(scene.target_is(scene.old_bytes));
}

TEST_CASE_TEMPLATE("faults: a stale block is the one before a write that was said to be done", Rig,
                   REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::stale, .times = 1}});
  CHECK(scene.write() == 0);
  CHECK(scene.read() == 0);
  CHECK(scene.target_is(scene.old_bytes));
}

TEST_CASE_TEMPLATE("faults: a misdirected read gives the bytes of its neighbour", Rig, REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::misdirected, .times = 2}});
  CHECK(scene.read(0) == 0);
  CHECK(scene.target_is(scene.old_bytes + kLength));
  CHECK(scene.read(kLength) == 0);
  CHECK(scene.target_is(scene.old_bytes));
}

TEST_CASE_TEMPLATE("faults: a delayed completion comes after its polls, with its bytes", Rig, REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::delay, .times = 1, .polls = 40}});
  std::memset(scene.target, 0x5a, kLength);
  REQUIRE(scene.device->submit({9, Op::read, scene.target, 0, kLength}).ok());
  Completion c;
  int polls = 1;
  for (; scene.device->poll({&c, 1}) == 0; polls++) {
    scene.device->wait(100);
    REQUIRE(polls < 10'000);
  }
  CHECK(polls > 40);
  CHECK(c.id == 9);
  CHECK(c.errno_value == 0);
  CHECK(scene.target_is(scene.old_bytes));
}

TEST_CASE_TEMPLATE("faults: a lost completion never comes, keeps its place, and harms no other", Rig,
                   REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::never, .times = 1}});
  char lost_buffer_before[64];
  std::memset(scene.target, 0x5a, kLength);
  std::memcpy(lost_buffer_before, scene.target, sizeof lost_buffer_before);
  REQUIRE(scene.device->submit({1, Op::read, scene.target, 0, kLength}).ok());
  const std::uint64_t start = monotonic_ns();
  scene.device->wait(50);
  CHECK(monotonic_ns() - start >= 45 * kNsPerMs);  // it is waited for as for a disk, not spun upon
  Completion c;
  for (int i = 0; i < 100; i++) CHECK(scene.device->poll({&c, 1}) == 0);
  CHECK(std::memcmp(lost_buffer_before, scene.target, sizeof lost_buffer_before) == 0);
  for (int i = 0; i < 20; i++)
    CHECK(run_one(*scene.device, {0, Op::write, scene.new_bytes, 0, kLength}) == 0);
  CHECK(scene.device->in_flight() == 1);
  CHECK(scene.rig.faulty.lost() == 1);
}

TEST_CASE_TEMPLATE("faults: short transfers, EINTR and EAGAIN at any boundary never surface", Rig,
                   REAL_RIGS) {
  SCENE_OR_SKIP();
  for (const FaultKind kind :
       {FaultKind::short_transfer, FaultKind::interrupted, FaultKind::again, FaultKind::partial_again}) {
    CAPTURE(std::string(to_text(kind)));
    std::uint64_t strikes = 0;
    for (int round = 0; round < 60; round++) {
      fill(scene.new_bytes, kLength, std::uint64_t(round) * 100 + std::uint64_t(kind));
      scene.rules({{.kind = kind, .one_in = 2}});
      REQUIRE(scene.write() == 0);
      REQUIRE(scene.file_is(scene.new_bytes));
      REQUIRE(scene.read() == 0);
      REQUIRE(scene.target_is(scene.new_bytes));
      strikes += scene.rig.faulty.strikes();
    }
    CHECK(strikes > 30);
  }
  const DeviceCounters& counters = scene.rig.real().counters();
  CHECK(counters.resumed_short > 50);
  CHECK(counters.retried > 50);
  CHECK(counters.errors == 0);
}

TEST_CASE_TEMPLATE("faults: 10 % of EINTR and EAGAIN in a full queue give no error and no wrong byte", Rig,
                   REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::interrupted, .one_in = 10},
               {.kind = FaultKind::again, .one_in = 10},
               {.kind = FaultKind::short_transfer, .one_in = 10}});
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  constexpr std::uint32_t kPiece = 32 * kKiB;
  for (int round = 0; round < 100; round++) {
    std::memset(memory.data(), 0, 2 * kLength);
    for (std::uint32_t i = 0; i < 2 * kLength / kPiece; i++)
      REQUIRE(scene.device->submit({i, Op::read, memory.data() + i * kPiece, i * kPiece, kPiece}).ok());
    for (const Completion& c : drain(*scene.device)) REQUIRE(c.errno_value == 0);
    REQUIRE(std::memcmp(memory.data(), scene.old_bytes, 2 * kLength) == 0);
  }
  CHECK(scene.rig.faulty.strikes() > 100);
}

TEST_CASE_TEMPLATE("faults: a transfer of 0 bytes is EIO, at the start and after a part", Rig, REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::zero, .times = 1}});
  CHECK(scene.read() == EIO);
  scene.rules(
      {{.kind = FaultKind::short_transfer, .times = 1}, {.kind = FaultKind::zero, .skip = 0, .times = 1}});
  CHECK(scene.read() == EIO);
  CHECK(scene.rig.faulty.strikes() == 2);
  CHECK(scene.read() == 0);
}

TEST_CASE_TEMPLATE("faults: EAGAIN for ever ends as EAGAIN, not as a hang", Rig, REAL_RIGS) {
  SCENE_OR_SKIP();
  scene.rules({{.kind = FaultKind::again}});
  CHECK(scene.read() == EAGAIN);
}

TEST_CASE_TEMPLATE("faults: an error amid a batch touches its own request only, buffers reused", Rig,
                   REAL_RIGS) {
  SCENE_OR_SKIP();
  constexpr std::uint32_t kPiece = 32 * kKiB, kPieces = 2 * kLength / kPiece;
  IoMemory memory;
  REQUIRE(memory.map(2 * kMiB).ok());
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; round++) {
    const std::uint32_t victim = std::uint32_t(random() % kPieces);
    scene.rules({{.kind = FaultKind::delay, .one_in = 3, .polls = 5},
                 {.kind = FaultKind::eio, .begin = victim * kPiece, .end = victim * kPiece + 1, .times = 1}});
    for (std::uint32_t i = 0; i < kPieces; i++)
      REQUIRE(scene.device->submit({i, Op::read, memory.data() + i * kPiece, i * kPiece, kPiece}).ok());
    for (const Completion& c : drain(*scene.device)) {
      if (c.errno_value != 0) {
        REQUIRE(c.id == victim);
        continue;
      }
      REQUIRE(std::memcmp(memory.data() + c.id * kPiece, scene.old_bytes + c.id * kPiece, kPiece) == 0);
      std::memset(memory.data() + c.id * kPiece, int(round), kPiece);  // reused while others are in flight
    }
    for (std::uint32_t i = 0; i < kPieces; i++)
      if (i != victim) REQUIRE(memory.data()[i * kPiece] == char(round));
  }
}

TEST_CASE("faults: the same seed gives the same faults") {
  auto trace = [](std::uint64_t seed) {
    FaultyRig<MemoryRig> rig(kRigDepth, seed);
    const FaultRule rules[] = {{.kind = FaultKind::eio, .one_in = 4},
                               {.kind = FaultKind::bit_flip, .one_in = 3}};
    REQUIRE(rig.faulty.set_rules(rules).ok());
    IoMemory buffer;
    REQUIRE(buffer.map(2 * kMiB).ok());
    std::vector<int> out;
    for (int i = 0; i < 200; i++) {
      out.push_back(run_one(rig.device(), {0, Op::read, buffer.data(), 0, 4096}));
      for (int k = 0; k < 4096; k++) out.back() += buffer.data()[k];
    }
    return out;
  };
  CHECK(trace(1) == trace(1));
  CHECK(trace(1) != trace(2));
}
