#include "tests/runtime/model_run.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>

namespace terrace::runtime::test {
namespace {

constexpr std::size_t kMostThreads = 16;
constexpr int kWrongBytes = 3;
constexpr std::uint64_t kSharedBytes = 1536 * kKiB;

// What the child tells its parent, in memory that they share.
struct Report {
  std::atomic<std::uint32_t> claimed;  // by the first thread that found something
  std::atomic<std::uint64_t> at[kMostThreads];
  std::uint64_t failed_at;
  char text[400];
  std::uint64_t bytes_in, bytes_out, blocks_stored, strikes;
};

// An object and what it must hold.
struct Shadowed {
  std::byte* object = nullptr;
  std::vector<std::uint8_t> bytes;
  std::vector<bool> undefined;  // by 8 bytes; empty when all is defined
};

void write_pattern(std::uint8_t* to, std::uint64_t offset, std::uint64_t length, std::uint64_t object,
                   std::uint64_t value) {
  for (std::uint64_t i = 0; i < length;) {
    const std::uint64_t word = word_at(object, (offset + i) / 8, value), skip = (offset + i) % 8;
    const std::uint64_t n = std::min(8 - skip, length - i);
    std::memcpy(to + i, reinterpret_cast<const std::uint8_t*>(&word) + skip, n);
    i += n;
  }
}

class Runner {
 public:
  Runner(Rig& rig, Report& report, std::size_t thread, const std::vector<Shadowed>& shared)
      : rig_(rig), report_(report), thread_(thread), shared_(shared) {}
  ~Runner() {
    if (pipe_[0] >= 0) {
      close(pipe_[0]);
      close(pipe_[1]);
    }
  }

  void run(const History& history) {
    std::uint16_t most = 0;
    for (const Operation& o : history) most = std::max(most, o.object);
    objects_.resize(std::size_t(most) + 1);
    for (std::size_t i = 0; i < history.size(); ++i) {
      report_.at[thread_].store(i, std::memory_order_relaxed);
      step(history[i]);
    }
    report_.at[thread_].store(history.size(), std::memory_order_relaxed);
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      if (objects_[i].object == nullptr) continue;
      compare(objects_[i], i, 0, objects_[i].bytes.size());
      rig_.heap().free(objects_[i].object);
    }
  }

  void compare(const Shadowed& s, std::size_t object, std::uint64_t offset, std::uint64_t length) {
    const auto* is = reinterpret_cast<const std::uint8_t*>(s.object);
    if (s.undefined.empty() && std::memcmp(is + offset, s.bytes.data() + offset, length) == 0) return;
    for (std::uint64_t i = offset; i < offset + length; ++i) {
      if (!s.undefined.empty() && s.undefined[i / 8]) continue;
      const std::uint8_t seen = is[i];
      if (seen != s.bytes[i]) wrong(s, object, i, seen);
    }
  }

 private:
  [[noreturn]] void wrong(const Shadowed& s, std::size_t object, std::uint64_t at, std::uint8_t seen) {
    if (report_.claimed.exchange(1) != 0) pause_for_ever();
    std::uint64_t many = 0;
    const auto* is = reinterpret_cast<const std::uint8_t*>(s.object);
    for (std::uint64_t i = at; i < s.bytes.size(); ++i)
      if ((s.undefined.empty() || !s.undefined[i / 8]) && is[i] != s.bytes[i]) ++many;
    std::uint64_t now = 0, should = 0;
    const std::uint64_t word = round_down(at, 8);
    std::memcpy(&now, is + word, std::min<std::uint64_t>(8, s.bytes.size() - word));
    std::memcpy(&should, s.bytes.data() + word, std::min<std::uint64_t>(8, s.bytes.size() - word));
    report_.failed_at = report_.at[thread_];
    std::snprintf(report_.text, sizeof report_.text,
                  "thread %zu object %zu of %zu bytes at granule %u: byte %llu is %02x, should be %02x "
                  "(word: first read again "
                  "as %016llx, should be %016llx); %llu wrong bytes from there on",
                  thread_, object, s.bytes.size(), rig_.arena().granule_at(s.object), (unsigned long long)at,
                  seen, s.bytes[at], (unsigned long long)now, (unsigned long long)should,
                  (unsigned long long)many);
    _exit(kWrongBytes);
  }

  [[noreturn]] static void pause_for_ever() {
    for (;;) pause();
  }

  // The part of the object that an operation means.
  static void part_of(const Shadowed& s, const Operation& o, std::uint64_t& offset, std::uint64_t& length) {
    offset = o.offset % s.bytes.size();
    length = std::min<std::uint64_t>(o.length, s.bytes.size() - offset);
  }

  void define(Shadowed& s, std::uint64_t offset, std::uint64_t length) {
    if (s.undefined.empty()) return;
    if (length == s.bytes.size()) return s.undefined.clear();
    // A word that is written in part: its other bytes are what the object holds, whatever that is.
    for (std::uint64_t w = offset / 8; w <= (offset + length - 1) / 8; ++w) {
      if (!s.undefined[w]) continue;
      s.undefined[w] = false;
      for (std::uint64_t i = w * 8; i < std::min<std::uint64_t>(w * 8 + 8, s.bytes.size()); ++i)
        if (i < offset || i >= offset + length) s.bytes[i] = std::uint8_t(s.object[i]);
    }
  }

  void step(const Operation& o) {
    switch (o.action) {
      case Action::limit: return rig_.pager().set_object_limit(o.length);
      case Action::pause: usleep(useconds_t(o.length)); return;
      case Action::read_shared:
        if (o.object < shared_.size())
          compare(shared_[o.object], 1000 + o.object, 0, shared_[o.object].bytes.size());
        return;
      case Action::spoil: return spoil(o);
      default: break;
    }
    Shadowed& s = objects_[o.object];
    if (o.action == Action::allocate || o.action == Action::allocate_zero) {
      if (s.object != nullptr || o.length == 0) return;
      return allocate(s, o.length, o.action == Action::allocate_zero);
    }
    if (s.object == nullptr) return;
    std::uint64_t offset = 0, length = 0;
    part_of(s, o, offset, length);
    switch (o.action) {
      case Action::free:
        rig_.heap().free(s.object);
        s = {};
        break;
      case Action::resize: resize(s, o.length); break;
      case Action::read:
        if (o.value % 3 == 0)
          read_backward(s, o.object, offset, length);
        else
          compare(s, o.object, offset, length);
        break;
      case Action::write: write(s, o, offset, length); break;
      case Action::poke: poke(s, o); break;
      case Action::copy: copy(s, o, offset, std::min<std::uint64_t>(length, 64 * kKiB)); break;
      case Action::drop: drop(s, offset, length); break;
      default: break;
    }
  }

  void allocate(Shadowed& s, std::uint64_t bytes, bool zero) {
    void* p = rig_.heap().allocate(bytes, 64, zero ? Fill::zero : Fill::undefined);
    if (p == nullptr) {
      if (report_.claimed.exchange(1) != 0) pause_for_ever();
      std::snprintf(report_.text, sizeof report_.text, "%llu bytes could not be allocated",
                    (unsigned long long)bytes);
      report_.failed_at = report_.at[thread_];
      _exit(kWrongBytes);
    }
    s.object = static_cast<std::byte*>(p);
    s.bytes.assign(bytes, 0);
    s.undefined.clear();
    if (!zero) s.undefined.assign((bytes + 7) / 8, true);
  }

  void resize(Shadowed& s, std::uint64_t bytes) {
    const std::uint64_t had = s.bytes.size(), kept = std::min(had, bytes);
    if (s.undefined.empty()) s.undefined.assign((had + 7) / 8, false);
    if (!rig_.heap().resize_in_place(s.object, bytes)) {
      Shadowed moved;
      allocate(moved, bytes, false);
      std::memcpy(moved.object, s.object, kept);
      rig_.heap().free(s.object);
      s.object = moved.object;
    }
    s.bytes.resize(bytes);
    s.undefined.resize((bytes + 7) / 8, true);
    // The last word of what was kept holds bytes that nobody wrote.
    if (bytes > had && had % 8 != 0) s.undefined[had / 8] = true;
  }

  void read_backward(const Shadowed& s, std::size_t object, std::uint64_t offset, std::uint64_t length) {
    std::uint64_t end = offset + length;
    while (end > offset) {
      const std::uint64_t from = std::max(offset, round_down(end - 1, kPageBytes));
      compare(s, object, from, end - from);
      end = from;
    }
  }

  void write(Shadowed& s, const Operation& o, std::uint64_t offset, std::uint64_t length) {
    define(s, offset, length);
    write_pattern(s.bytes.data() + offset, offset, length, o.object, o.value);
    if (o.value % 4 != 0) {
      std::memcpy(s.object + offset, s.bytes.data() + offset, length);
      return;
    }
    std::uint64_t end = offset + length;  // page by page, from the last
    while (end > offset) {
      const std::uint64_t from = std::max(offset, round_down(end - 1, kPageBytes));
      std::memcpy(s.object + from, s.bytes.data() + from, end - from);
      end = from;
    }
  }

  void poke(Shadowed& s, const Operation& o) {
    if (s.bytes.size() < 8) return;
    Random random(o.value);
    for (int i = 0; i < 24; ++i) {
      const std::uint64_t at = random.below(s.bytes.size() / 8) * 8;
      compare(s, o.object, at, 8);
      const std::uint64_t value = random.next();
      define(s, at, 8);
      std::memcpy(s.bytes.data() + at, &value, 8);
      std::memcpy(s.object + at, &value, 8);
    }
  }

  // Out by write() and back by read(), other bytes: the kernel itself touches the object.
  void copy(Shadowed& s, const Operation& o, std::uint64_t offset, std::uint64_t length) {
    if (pipe_[0] < 0 && pipe2(pipe_, O_CLOEXEC) != 0) return;
    std::vector<std::uint8_t> seen(length);
    for (std::uint64_t done = 0; done < length;) {
      const ssize_t out =
          ::write(pipe_[1], s.object + offset + done, std::min<std::uint64_t>(length - done, 32 * kKiB));
      if (out <= 0) return kernel_refused(o, out);
      for (ssize_t in = 0; in < out;) {
        const ssize_t n = ::read(pipe_[0], seen.data() + done + std::uint64_t(in), std::size_t(out - in));
        if (n <= 0) return kernel_refused(o, n);
        in += n;
      }
      done += std::uint64_t(out);
    }
    for (std::uint64_t i = 0; i < length; ++i) {
      if (!s.undefined.empty() && s.undefined[(offset + i) / 8]) continue;
      if (seen[i] != s.bytes[offset + i]) wrong(s, o.object, offset + i, seen[i]);
    }
    define(s, offset, length);
    write_pattern(s.bytes.data() + offset, offset, length, o.object, o.value);
    for (std::uint64_t done = 0; done < length;) {
      const ssize_t out = ::write(pipe_[1], s.bytes.data() + offset + done,
                                  std::min<std::uint64_t>(length - done, 32 * kKiB));
      if (out <= 0) return kernel_refused(o, out);
      for (ssize_t in = 0; in < out;) {
        const ssize_t n =
            ::read(pipe_[0], s.object + offset + done + std::uint64_t(in), std::size_t(out - in));
        if (n <= 0) return kernel_refused(o, n);
        in += n;
      }
      done += std::uint64_t(out);
    }
  }

  void kernel_refused(const Operation& o, ssize_t result) {
    const int error = errno;
    if (report_.claimed.exchange(1) != 0) pause_for_ever();
    std::snprintf(report_.text, sizeof report_.text, "a system call on object %u gave %zd errno=%d", o.object,
                  result, error);
    report_.failed_at = report_.at[thread_];
    _exit(kWrongBytes);
  }

  void drop(Shadowed& s, std::uint64_t offset, std::uint64_t length) {
    const std::uint64_t from = round_up(offset, kPageBytes), to = round_down(offset + length, kPageBytes);
    if (from >= to) return;
    if (madvise(s.object + from, to - from, MADV_DONTNEED) != 0) return;
    define(s, from, to - from);
    std::fill(s.bytes.begin() + long(from), s.bytes.begin() + long(to), std::uint8_t(0));
  }

  void spoil(const Operation& o) {
    for (std::size_t k = 0; k < objects_.size(); ++k) {
      Shadowed& s = objects_[(o.value + k) % objects_.size()];
      if (s.object == nullptr) continue;
      for (std::uint64_t i = (o.value >> 8) % s.bytes.size(); i < s.bytes.size(); ++i) {
        if (!s.undefined.empty() && s.undefined[i / 8]) continue;
        s.bytes[i] ^= 0x10;
        return;
      }
    }
  }

  Rig& rig_;
  Report& report_;
  std::size_t thread_;
  const std::vector<Shadowed>& shared_;
  std::vector<Shadowed> objects_;
  int pipe_[2] = {-1, -1};
};

std::vector<io::FaultRule> fault_rules(const RunConfig& config) {
  using K = io::FaultKind;
  Random random(config.seed ^ 0xfa17);
  switch (config.faults) {
    case Faults::none: return {};
    case Faults::stale: return {{.kind = K::stale, .one_in = 3}};
    case Faults::never: return {{.kind = K::never, .on = io::FaultOn::reads, .skip = 3, .times = 1}};
    case Faults::transient: break;
  }
  // Errors one at a time and far from each other: the third failure of one block in a row is the job's end,
  // by design.
  std::vector<io::FaultRule> rules;
  std::uint32_t skip = 2 + std::uint32_t(random.below(20));
  for (const K kind : {K::eio, K::bit_flip, K::no_space, K::misdirected, K::eio, K::bit_flip, K::zero}) {
    rules.push_back({.kind = kind, .skip = skip, .times = 1});
    skip += 100 + std::uint32_t(random.below(300));
  }
  rules.push_back({.kind = K::delay, .one_in = 7, .polls = 40});
  rules.push_back({.kind = K::short_transfer, .one_in = 5});
  rules.push_back({.kind = K::interrupted, .one_in = 6});
  rules.push_back({.kind = K::again, .one_in = 6});
  rules.push_back({.kind = K::partial_again, .one_in = 6});
  return rules;
}

void keep_counters(Rig& rig, Report& report) {
  report.bytes_in = rig.counters().bytes_in;
  report.bytes_out = rig.counters().bytes_out;
  report.blocks_stored = rig.counters().blocks_stored;
}

// In the child. Returns its exit status.
int run_all(const RunConfig& config, const std::vector<History>& histories, Report& report) {
  RigOptions options;
  options.device = config.device;
  options.limit_bytes = config.limit_bytes;
  options.lru = config.lru;
  options.force_eviction = config.force_eviction;
  options.seed = config.seed;
  options.latency_polls = config.device == DeviceKind::memory ? 5 : 0;
  options.faults = fault_rules(config);
  Rig rig(options);
  std::vector<Shadowed> shared(config.shared_objects);
  for (std::size_t i = 0; i < shared.size(); ++i) {
    shared[i].object = static_cast<std::byte*>(rig.heap().allocate(kSharedBytes, 64, Fill::undefined));
    if (shared[i].object == nullptr) return 1;
    shared[i].bytes.resize(kSharedBytes);
    write_pattern(shared[i].bytes.data(), 0, kSharedBytes, 1000 + i, config.seed);
    std::memcpy(shared[i].object, shared[i].bytes.data(), kSharedBytes);
  }
  if (histories.size() == 1) {
    Runner(rig, report, 0, shared).run(histories[0]);
  } else {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < histories.size(); ++t)
      threads.emplace_back([&, t] { Runner(rig, report, t, shared).run(histories[t]); });
    for (auto& thread : threads) thread.join();
  }
  Runner(rig, report, 0, shared).run({{.action = Action::read_shared}});
  for (Shadowed& s : shared) rig.heap().free(s.object);
  rig.heap().validate();
  keep_counters(rig, report);
  rig.stop_pager();
  report.strikes = options.faults.empty() ? 0 : rig.faulty().strikes();
  return 0;
}

std::string text_of(int fd) {
  std::string text(2000, 0);
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? std::size_t(got) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

std::string to_text(const RunConfig& c) {
  const char* const devices[] = {"memory", "uring", "sync"};
  const char* const faults[] = {"none", "transient", "stale", "never"};
  char text[200];
  std::snprintf(text, sizeof text, "device=%s policy=%s force=%d faults=%s seed=%llu", devices[int(c.device)],
                c.lru ? "lru" : "stream", int(c.force_eviction), faults[int(c.faults)],
                (unsigned long long)c.seed);
  return text;
}

const char* to_text(Verdict verdict) {
  const char* const names[] = {"passed", "skipped", "wrong bytes", "ended", "hung"};
  return names[std::size_t(verdict)];
}

Outcome attempt(const RunConfig& config, const std::vector<History>& histories) {
  auto* report = static_cast<Report*>(
      mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int lines = memfd_create("model_lines", MFD_CLOEXEC);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 1);
    dup2(lines, 2);
    _exit(run_all(config, histories, *report));
  }
  Outcome outcome;
  int status = 0;
  const auto started = std::chrono::steady_clock::now();
  bool in_time = true;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() - started > std::chrono::seconds(config.timeout_s)) {
      in_time = false;
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    usleep(2000);
  }
  outcome.at = report->at[0];
  outcome.bytes_in = report->bytes_in;
  outcome.bytes_out = report->bytes_out;
  outcome.blocks_stored = report->blocks_stored;
  outcome.strikes = report->strikes;
  outcome.text = text_of(lines);
  if (!in_time) {
    outcome.verdict = Verdict::hung;
    outcome.text = "no end within " + std::to_string(config.timeout_s) + " s; threads were in operation";
    for (std::size_t t = 0; t < histories.size(); ++t) outcome.text += " " + std::to_string(report->at[t]);
  } else if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    outcome.verdict = Verdict::skipped;
  } else if (WIFEXITED(status) && WEXITSTATUS(status) == kWrongBytes) {
    outcome.verdict = Verdict::wrong_bytes;
    outcome.text = report->text;
    outcome.at = report->failed_at;
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    outcome.verdict = Verdict::ended;
    if (WIFSIGNALED(status)) outcome.text += " (signal " + std::to_string(WTERMSIG(status)) + ")";
  }
  close(lines);
  munmap(report, sizeof(Report));
  return outcome;
}

History shrink(const RunConfig& given, History history, const Outcome& first, int most_s) {
  const auto started = std::chrono::steady_clock::now();
  const auto over = [&] { return std::chrono::steady_clock::now() - started > std::chrono::seconds(most_s); };
  RunConfig config = given;
  if (first.verdict == Verdict::hung) config.timeout_s = std::min(config.timeout_s, 12);
  // A failure may need luck: a candidate is given two tries.
  const auto fails = [&](const History& candidate) {
    for (int tries = 0; tries < 2 && !over(); ++tries) {
      const Outcome outcome = attempt(config, {candidate});
      if (outcome.verdict == first.verdict) return true;
      if (outcome.verdict == Verdict::skipped) return false;
    }
    return false;
  };
  if (first.at + 1 < history.size()) {
    History prefix(history.begin(), history.begin() + long(first.at) + 1);
    if (fails(prefix)) history = std::move(prefix);
  }
  for (std::size_t step = std::max<std::size_t>(1, history.size() / 2); !over();) {
    bool shorter = false;
    for (std::size_t from = 0; from < history.size() && history.size() > 1 && !over();) {
      History candidate(history.begin(), history.begin() + long(from));
      const std::size_t behind = std::min(history.size(), from + step);
      candidate.insert(candidate.end(), history.begin() + long(behind), history.end());
      if (!candidate.empty() && fails(candidate)) {
        history = std::move(candidate);
        shorter = true;
      } else {
        from += step;
      }
    }
    if (step == 1 && !shorter) break;
    if (step > 1) step /= 2;
  }
  return history;
}

}  // namespace terrace::runtime::test
