// Every fault of a device against the real pager: what must be survived is, with right bytes; what cannot be
// served ends in one clear line within the time limit, never in a zero page and never in a hang.
#include <doctest/doctest.h>
#include <signal.h>

#include "tests/runtime/model_child.hpp"
#include "tests/runtime/pager_rig.hpp"

using namespace terrace;
using namespace terrace::runtime;
using namespace terrace::runtime::test;
using io::FaultKind;
using io::FaultOn;
using io::FaultRule;

namespace {

constexpr std::uint64_t kBytes = 2 * kMiB;
constexpr std::size_t kObjects = 24;
constexpr std::uint64_t kLimitBytes = 16 * kMiB;
constexpr int kPasses = 4;
constexpr std::uint32_t kIoTimeoutMs = 2500;  // of a busy machine under a sanitizer, too

enum Code { kSurvived = 0, kWrongBytes = 3, kFatal = 4, kHung = 5, kNoMemory = 6, kWentOn = 7 };

struct Seen {
  std::uint64_t strikes = 0, io_errors = 0, checksum_failures = 0;
};

// Three passes of read and write over three times the limit, in a thread that may be left hanging.
int cycle_under_faults(Note& note, DeviceKind device, const std::vector<FaultRule>& faults, Seen* seen) {
  RigOptions options;
  options.device = device;
  options.limit_bytes = kLimitBytes;
  options.faults = faults;
  options.io_timeout_ms = kIoTimeoutMs;
  options.may_fail = true;
  auto* rig = new Rig(options);  // never taken down when a thread hangs in it
  static std::atomic<bool> done, no_memory;
  static std::atomic<std::size_t> wrong, progress;
  done = no_memory = false;
  wrong = progress = 0;
  std::thread program([rig] {
    std::vector<void*> objects;
    for (std::size_t i = 0; i < kObjects; ++i) {
      void* p = rig->heap().allocate(kBytes, 64, Fill::undefined);
      if (p == nullptr) {
        no_memory = true;
        return;
      }
      fill_words(p, kBytes, i, 0);
      objects.push_back(p);
      ++progress;
    }
    for (std::uint64_t pass = 0; pass < kPasses; ++pass) {
      for (std::size_t i = 0; i < objects.size(); ++i) {
        if (find_wrong_word(objects[i], kBytes, i, pass) != ~0ull) ++wrong;
        fill_words(objects[i], kBytes, i, pass + 1);
        ++progress;
      }
    }
    done = true;
  });
  const auto fatal = [&] { return rig->job().phase.load() == PagerPhase::fatal; };
  for (int ms = 0; ms < 20'000 && !done && !no_memory && !fatal(); ++ms) usleep(1000);
  if (no_memory) {
    program.join();
    return note.say(kNoMemory, "an object could not be allocated");
  }
  if (fatal()) {
    const std::size_t before = progress;
    usleep(300'000);  // whoever waits for the block must wait for ever: the supervisor ends the job
    program.detach();
    if (wrong != 0) return note.say(kWrongBytes, "wrong bytes, and: %s", rig->job().message);
    if (done) return note.say(kWentOn, "the program went to its end beside: %s", rig->job().message);
    if (progress > before + kLimitBytes / kBytes)
      return note.say(kWentOn, "it went on: %s", rig->job().message);
    if (rig->job().message_ready != 1) return note.say(kHung, "a fatal end without its line");
    return note.say(kFatal, "%s", rig->job().message);
  }
  if (!done) {
    program.detach();
    return note.say(kHung, "no end, after %zu objects", progress.load());
  }
  program.join();
  if (wrong != 0) return note.say(kWrongBytes, "%zu wrong objects", wrong.load());
  if (seen != nullptr) {
    rig->stop_pager();
    *seen = {rig->faulty().strikes(), rig->counters().io_errors, rig->counters().checksum_failures};
  }
  return kSurvived;
}

struct Case {
  const char* name;
  FaultRule rule;
  const char* line;  // what the fatal line must hold; null: the job survives
  const char* error;
};

const char* name_of(DeviceKind kind) {
  return kind == DeviceKind::memory ? "memory" : kind == DeviceKind::uring ? "uring" : "sync";
}

void check_cases(std::initializer_list<Case> cases) {
  for (const DeviceKind device : {DeviceKind::memory, DeviceKind::uring, DeviceKind::sync}) {
    for (const Case& c : cases) {
      INFO(name_of(device));
      INFO(c.name);
      const ChildResult result = in_child(30, [&](Note& note) {
        Seen seen;
        const int code = cycle_under_faults(note, device, {c.rule}, &seen);
        if (code != kSurvived) return code;
        if (seen.strikes == 0) return note.say(8, "the fault never struck");
        return code;
      });
      INFO(result.text);
      CHECK(result.in_time);
      if (c.line == nullptr) {
        CHECK(result.code == kSurvived);
        continue;
      }
      CHECK(result.code == kFatal);
      CHECK(result.text.starts_with("terrace: "));
      CHECK(result.text.find('\n') == std::string::npos);
      CHECK(result.text.find(c.line) != std::string::npos);
      CHECK(result.text.find(c.error) != std::string::npos);
      CHECK(result.text.find(" object=0x") != std::string::npos);
      CHECK(result.text.find(" extent=") != std::string::npos);
      CHECK(result.seconds < 2.0 * kIoTimeoutMs / 1000 + 8);
    }
  }
}

}  // namespace

TEST_CASE("pager: a device that fails for a moment is survived with right bytes") {
  check_cases({
      {"EIO on two reads",
       {.kind = FaultKind::eio, .on = FaultOn::reads, .skip = 5, .times = 2},
       nullptr,
       nullptr},
      {"EIO on two writes",
       {.kind = FaultKind::eio, .on = FaultOn::writes, .skip = 3, .times = 2},
       nullptr,
       nullptr},
      {"ENOSPC on two writes", {.kind = FaultKind::no_space, .skip = 3, .times = 2}, nullptr, nullptr},
      {"a bit flips in two reads", {.kind = FaultKind::bit_flip, .skip = 9, .times = 2}, nullptr, nullptr},
      {"two reads bring another place",
       {.kind = FaultKind::misdirected, .skip = 9, .times = 2},
       nullptr,
       nullptr},
      {"two transfers give 0 bytes", {.kind = FaultKind::zero, .skip = 9, .times = 2}, nullptr, nullptr},
      {"every second transfer comes late",
       {.kind = FaultKind::delay, .one_in = 2, .polls = 50},
       nullptr,
       nullptr},
      {"every second attempt is short", {.kind = FaultKind::short_transfer, .one_in = 2}, nullptr, nullptr},
      {"every second attempt gives EINTR", {.kind = FaultKind::interrupted, .one_in = 2}, nullptr, nullptr},
      {"every second attempt gives EAGAIN", {.kind = FaultKind::again, .one_in = 2}, nullptr, nullptr},
      {"every second attempt is short, then EAGAIN",
       {.kind = FaultKind::partial_again, .one_in = 2},
       nullptr,
       nullptr},
  });
}

TEST_CASE("pager: a block that cannot be read ends the job with its name, never as zeros") {
  check_cases({
      {"EIO on reads",
       {.kind = FaultKind::eio, .on = FaultOn::reads, .skip = 5},
       "a stored block cannot be read",
       "EIO (5)"},
      {"0 bytes on reads",
       {.kind = FaultKind::zero, .on = FaultOn::reads, .skip = 5},
       "a stored block cannot be read",
       "EIO (5)"},
      {"bits flip in all reads", {.kind = FaultKind::bit_flip, .skip = 5}, "checksum", "EBADMSG"},
      {"all reads bring another place", {.kind = FaultKind::misdirected, .skip = 5}, "checksum", "EBADMSG"},
      {"a write is lost", {.kind = FaultKind::stale, .skip = 5, .times = 1}, "checksum", "EBADMSG"},
      {"writes are lost", {.kind = FaultKind::stale, .skip = 30}, "checksum", "EBADMSG"},
  });
}

TEST_CASE("pager: a device that never answers ends the job within the time limit") {
  check_cases({
      {"a read", {.kind = FaultKind::never, .on = FaultOn::reads, .skip = 5}, "does not answer", "ETIMEDOUT"},
      {"a write",
       {.kind = FaultKind::never, .on = FaultOn::writes, .skip = 5},
       "does not answer",
       "ETIMEDOUT"},
  });
}

TEST_CASE("pager: time in which the whole process was stopped does not count for its device") {
  const ChildResult result = in_child(60, [](Note& note) {
    const pid_t child = getpid();
    if (fork() == 0) {
      for (int i = 0; i < 3; ++i) {
        usleep(150'000);
        kill(child, SIGSTOP);
        usleep(1300 * kIoTimeoutMs);
        kill(child, SIGCONT);
      }
      _exit(0);
    }
    // A device so slow that something is in flight at any moment.
    std::vector<FaultRule> slow = {{.kind = FaultKind::delay, .polls = 40}};
    return cycle_under_faults(note, DeviceKind::memory, slow, nullptr);
  });
  INFO(result.text);
  CHECK(result.in_time);
  CHECK(result.code == kSurvived);
}

TEST_CASE(
    "pager: a store that takes no more blocks ends the job with one line, and blocks that could not go stay "
    "whole") {
  check_cases({
      {"EIO on writes",
       {.kind = FaultKind::eio, .on = FaultOn::writes, .skip = 4},
       "takes no more blocks",
       "EIO (5)"},
      {"ENOSPC on writes", {.kind = FaultKind::no_space, .skip = 4}, "takes no more blocks", "ENOSPC (28)"},
      {"EIO on writes for some blocks",
       {.kind = FaultKind::eio, .on = FaultOn::writes, .skip = 4, .times = 30},
       nullptr,
       nullptr},
      {"ENOSPC on writes for some blocks",
       {.kind = FaultKind::no_space, .skip = 4, .times = 30},
       nullptr,
       nullptr},
  });
}

TEST_CASE("pager: a store that is used up refuses objects, and keeps those that live") {
  const ChildResult result = in_child(60, [](Note& note) {
    Rig rig({.device = DeviceKind::uring, .limit_bytes = 16 * kMiB, .store_capacity_bytes = 64 * kMiB});
    std::vector<void*> objects;
    for (std::size_t i = 0; i < 200; ++i) {
      void* p = rig.heap().allocate(kBytes, 64, Fill::undefined);
      if (p == nullptr) break;
      fill_words(p, kBytes, i, 0);
      objects.push_back(p);
    }
    if (objects.size() < 16 || objects.size() == 200) return note.say(1, "%zu objects", objects.size());
    for (std::size_t i = 0; i < objects.size(); ++i)
      if (find_wrong_word(objects[i], kBytes, i, 0) != ~0ull) return note.say(kWrongBytes, "object %zu", i);
    rig.heap().free(objects.back());
    void* again = rig.heap().allocate(kBytes, 64, Fill::undefined);
    if (again == nullptr) return note.say(2, "no object although one was freed");
    fill_words(again, kBytes, objects.size() - 1, 0);
    objects.back() = again;
    for (std::size_t i = 0; i < objects.size(); ++i)
      if (find_wrong_word(objects[i], kBytes, i, 0) != ~0ull) return note.say(kWrongBytes, "object %zu", i);
    return 0;
  });
  INFO(result.text);
  CHECK(result.in_time);
  CHECK(result.code == 0);
}
