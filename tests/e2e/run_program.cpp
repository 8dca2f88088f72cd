// A program that knows nothing of Terrace, with a verb for each trouble that run_*_test.py puts a job into.
//
//   stl | threads [MIB] | hold MIB | end HOW | exec MIB | send DESCRIPTOR MIB THREADS | closes MIB | replaces
//   MIB | nulls MIB | fork-exec MIB | fork-touch MIB | spawn MIB | check MIB
// What it prints on standard output is the same wherever its memory lies; a wrong byte ends it with status 3.
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

extern char** environ;

namespace {

constexpr std::size_t kMiB = 1024 * 1024;

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

[[noreturn]] void wrong(const char* where, std::size_t index, std::uint64_t got, std::uint64_t wanted) {
  std::fprintf(stderr, "wrong bytes: %s word %zu is %016llx, not %016llx\n", where, index,
               static_cast<unsigned long long>(got), static_cast<unsigned long long>(wanted));
  _exit(3);
}

// Words that name their place, so that any other page is seen.
struct Stretch {
  std::unique_ptr<std::uint64_t[]> words;
  std::size_t count = 0;
  std::uint64_t seed = 0;

  Stretch(std::size_t bytes, std::uint64_t s)
      : words(new (std::nothrow) std::uint64_t[bytes / 8]), count(bytes / 8), seed(s) {
    if (words == nullptr) {
      std::printf("no memory: %s\n", std::strerror(errno));
      std::exit(4);
    }
    fill();
  }
  std::uint64_t value(std::size_t i) const { return (seed << 32) + i * 0x9e3779b97f4a7c15ull; }
  void fill() {
    for (std::size_t i = 0; i < count; ++i) words[i] = value(i);
  }
  void check(const char* where) const {
    for (std::size_t i = 0; i < count; ++i)
      if (words[i] != value(i)) wrong(where, i, words[i], value(i));
  }
  void rewrite(std::uint64_t s) {
    check("before a rewrite");
    seed = s;
    fill();
  }
};

// Objects of 2 MiB and, every fourth, of odd sizes of 128 KiB and more.
std::vector<Stretch> fill_memory(std::size_t mib) {
  std::vector<Stretch> all;
  std::uint64_t random = 7;
  for (std::size_t done = 0; done < mib * kMiB;) {
    random = mix(random + 1);
    const std::size_t bytes = all.size() % 4 == 3 ? 128 * 1024 + random % (3 * kMiB) / 8 * 8 : 2 * kMiB;
    all.emplace_back(bytes, random);
    done += bytes;
  }
  return all;
}

void check_memory(const std::vector<Stretch>& all, const char* where) {
  for (const Stretch& s : all) s.check(where);
}

// Keeps memory on the move for as long as the process lives.
void walk_for_ever(std::vector<Stretch>& all, std::uint64_t seed) {
  for (std::uint64_t round = seed;; ++round) {
    Stretch& s = all[mix(round) % all.size()];
    s.check("walking");
  }
}

void say_ready() {
  std::printf("ready %d\n", int(getpid()));
  std::fflush(stdout);
}

int stl() {
  std::uint64_t sum = 0;
  std::vector<std::uint64_t> keys;
  for (std::uint64_t i = 0; i < 1'000'000; ++i) keys.push_back(mix(i));  // grows by copying
  std::vector<std::uint32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return keys[a] < keys[b]; });
  for (std::size_t i = 0; i < order.size(); i += 1013) sum = mix(sum + order[i]);
  std::string text;
  for (int i = 0; i < 400'000; ++i) text += std::to_string(keys[std::size_t(i)] % 10'000);
  sum = mix(sum + std::hash<std::string_view>{}(text));
  std::unordered_map<std::uint64_t, std::vector<char>> map;
  for (std::uint64_t i = 0; i < 40; ++i) map[i].assign(200'000 + i * 1000, char(i));
  for (std::uint64_t i = 0; i < 40; i += 3) map.erase(i);
  for (const auto& [key, bytes] : map)
    sum += mix(key + std::uint64_t(std::count(bytes.begin(), bytes.end(), char(key))));
  std::vector<std::vector<double>> matrix(48, std::vector<double>(64 * 1024));
  for (std::size_t r = 0; r < matrix.size(); ++r)
    for (std::size_t c = 0; c < matrix[r].size(); ++c) matrix[r][c] = double(mix(r * 65536 + c) % 1000);
  for (int pass = 0; pass < 3; ++pass)
    for (std::size_t r = 1; r < matrix.size(); ++r)
      for (std::size_t c = 0; c < matrix[r].size(); ++c) matrix[r][c] += 0.5 * matrix[r - 1][c];
  double total = 0;
  for (const auto& row : matrix) total = std::accumulate(row.begin(), row.end(), total);
  std::printf("stl %016llx %.17g\n", static_cast<unsigned long long>(sum), total);
  return 0;
}

int threads(std::size_t shared_mib) {
  constexpr int kThreads = 4;
  std::vector<Stretch> shared = fill_memory(shared_mib);
  std::atomic<std::uint64_t> sum{0};
  std::vector<std::thread> all;
  for (int t = 0; t < kThreads; ++t) {
    all.emplace_back([&, t] {
      std::uint64_t random = std::uint64_t(t) + 100;
      std::vector<Stretch> own;
      for (int round = 0; round < 40; ++round) {
        random = mix(random + 1);
        if (own.size() < 6) {
          own.emplace_back(128 * 1024 + random % (4 * kMiB) / 8 * 8, random);
        } else if (random % 3 == 0) {
          own.erase(own.begin() + long(random / 8 % own.size()));
        } else {
          own[random / 8 % own.size()].rewrite(random);
        }
        own[mix(random) % own.size()].check("a thread's own");
        shared[std::size_t(random / 64) % shared.size()].check("shared");
        // The system writes and reads objects too.
        int ends[2];
        if (pipe(ends) == 0) {
          Stretch& s = own.back();
          const ssize_t put = write(ends[1], s.words.get(), 32768);
          std::memset(s.words.get(), 0, 32768);
          const ssize_t got = read(ends[0], s.words.get(), 32768);
          if (put != 32768 || got != 32768) wrong("pipe", 0, std::uint64_t(got), 32768);
          close(ends[0]);
          close(ends[1]);
        }
      }
      for (const Stretch& s : own) {
        s.check("at the end");
        sum += mix(s.seed);
      }
    });
  }
  for (std::thread& t : all) t.join();
  check_memory(shared, "shared at the end");
  std::printf("threads %016llx\n", static_cast<unsigned long long>(sum.load()));
  return 0;
}

int check(std::size_t mib) {
  std::vector<Stretch> all = fill_memory(mib);
  check_memory(all, "first");
  for (Stretch& s : all) s.rewrite(s.seed + 1);
  check_memory(all, "second");
  std::printf("right %zu\n", all.size());
  return 0;
}

int hold(std::size_t mib) {
  std::vector<Stretch> all = fill_memory(mib);
  check_memory(all, "first");
  say_ready();
  std::thread([&] { walk_for_ever(all, 1); }).detach();
  char letter = 0;
  while (read(0, &letter, 1) == 1) {
    if (letter != 'c') continue;
    check_memory(all, "asked");
    std::printf("right\n");
    std::fflush(stdout);
  }
  _exit(0);
}

int end(std::string_view how, std::size_t mib) {
  static std::vector<Stretch> all = fill_memory(mib);
  std::thread([] { walk_for_ever(all, 1); }).detach();
  std::thread([] { walk_for_ever(all, 1000); }).detach();
  say_ready();
  usleep(30'000);
  if (how == "abort") std::abort();
  if (how == "exit") std::exit(5);  // destroys `all` while the threads still walk: only _exit's cousin may
  if (how == "_exit") _exit(5);
  if (how == "segv") {
    volatile std::uintptr_t nowhere = 8;
    *reinterpret_cast<volatile int*>(nowhere) = 1;
  }
  if (how == "thread") {
    std::thread([] { _exit(6); }).detach();
    pause();
  }
  if (how == "main-leaves") {  // the first thread ends, another one lives on and ends the process
    std::thread([] {
      usleep(50'000);
      check_memory(all, "after the first thread");
      _exit(7);
    }).detach();
    syscall(SYS_exit, 0);
  }
  return 2;
}

int exec_other(const char* self, std::size_t mib) {
  std::vector<Stretch> all = fill_memory(mib);
  std::thread([&] { walk_for_ever(all, 1); }).detach();
  say_ready();
  const std::string size = std::to_string(mib);
  execl(self, self, "check", size.c_str(), nullptr);
  return 2;
}

int send_objects(int descriptor, std::size_t mib, int count) {
  std::vector<char*> all;
  constexpr std::size_t kBytes = kMiB;
  for (std::size_t i = 0; i < mib; ++i) {
    all.push_back(static_cast<char*>(std::malloc(kBytes)));
    std::memset(all.back(), 'A', kBytes);
  }
  say_ready();
  std::vector<std::thread> senders;
  for (int t = 0; t < count; ++t) {
    senders.emplace_back([&, t] {
      for (std::size_t i = std::size_t(t);; ++i) {
        const char* const p = all[i * 7 % all.size()];
        for (std::size_t done = 0; done < kBytes;) {
          const ssize_t n = t % 2 == 0 ? write(descriptor, p + done, kBytes - done)
                                       : send(descriptor, p + done, kBytes - done, MSG_NOSIGNAL);
          if (n < 0 && errno == ENOTSOCK) {
            if (write(descriptor, p + done, 4096) != 4096) return;
            done += 4096;
            continue;
          }
          if (n <= 0) {
            if (errno == EFAULT) std::fprintf(stderr, "a system call saw EFAULT\n");
            return;
          }
          done += std::size_t(n);
        }
      }
    });
  }
  char letter;
  if (read(0, &letter, 1) < 0) return 2;  // until standard input ends
  _exit(0);
}

int closes(std::size_t mib) {
  std::vector<Stretch> all = fill_memory(mib);
  syscall(SYS_close_range, 3, ~0u, 0);
  for (int i = 3; i < 1024; ++i) close(i);
  check_memory(all, "after close_range");
  for (Stretch& s : all) s.rewrite(s.seed + 1);
  check_memory(all, "written after close_range");
  std::printf("right %zu\n", all.size());
  return 0;
}

int replaces(std::size_t mib) {
  std::vector<Stretch> all = fill_memory(mib);
  const int null = open("/dev/null", O_RDWR);
  for (int i = 3; i < 200; ++i)
    if (i != null) dup2(null, i);
  check_memory(all, "after dup2");
  for (Stretch& s : all) s.rewrite(s.seed + 1);
  check_memory(all, "written after dup2");
  std::printf("right %zu\n", all.size());
  return 0;
}

// Takes memory until malloc refuses; then what it has must be right, and memory must come again after a free.
int nulls(std::size_t mib) {
  std::vector<std::uint64_t*> all;
  constexpr std::size_t kWords = 2 * kMiB / 8;
  bool refused = false;
  for (std::size_t i = 0; i < mib / 2; ++i) {
    errno = 0;
    auto* const p = static_cast<std::uint64_t*>(std::malloc(kWords * 8));
    if (p == nullptr) {
      refused = true;
      std::printf("refused errno %d\n", errno);
      break;
    }
    for (std::size_t w = 0; w < kWords; ++w) p[w] = mix(i) + w;
    all.push_back(p);
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t w = 0; w < kWords; ++w)
      if (all[i][w] != mix(i) + w) wrong("after malloc was refused", w, all[i][w], mix(i) + w);
  if (refused) {
    for (int i = 0; i < 8 && !all.empty(); ++i, all.pop_back()) std::free(all.back());
    void* const again = std::malloc(kWords * 8);
    std::printf("again %s\n", again != nullptr ? "yes" : "no");
    std::free(again);
  }
  std::printf("taken %zu MiB\n", all.size() * 2);
  return 0;
}

int status_text(const char* what, int status) {
  if (WIFSIGNALED(status))
    std::printf("%s: signal %d\n", what, WTERMSIG(status));
  else
    std::printf("%s: status %d\n", what, WEXITSTATUS(status));
  std::fflush(stdout);
  return 0;
}

int fork_exec(std::size_t mib) {
  std::vector<Stretch> all = fill_memory(mib);
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      execlp("sh", "sh", "-c", "exit 9", nullptr);
      _exit(127);
    }
    all[std::size_t(i)].rewrite(std::uint64_t(i));
    int status = 0;
    waitpid(child, &status, 0);
    status_text("fork and exec", status);
  }
  const pid_t child = vfork();
  if (child == 0) {
    execlp("true", "true", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  status_text("vfork and exec", status);
  status_text("system", std::system("exit 11"));
  FILE* const pipe = popen("echo from a child", "r");
  char line[64] = "";
  if (std::fgets(line, sizeof line, pipe) != nullptr) std::printf("popen: %s", line);
  status_text("popen", pclose(pipe));
  char* words[] = {const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>("exit 12"), nullptr};
  pid_t spawned = 0;
  if (posix_spawnp(&spawned, "sh", nullptr, nullptr, words, environ) != 0) return 2;
  waitpid(spawned, &status, 0);
  status_text("posix_spawn", status);
  check_memory(all, "after the children");
  std::printf("right %zu\n", all.size());
  return 0;
}

// In a child: one object after the other must be right, or end the child; never anything else.
int fork_touch(std::size_t mib) {
  std::vector<Stretch> all = fill_memory(mib);
  int signals = 0, right = 0;
  for (std::size_t i = 0; i < all.size(); i += all.size() / 8 + 1) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      all[i].check("in a child");
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV)
      ++signals;
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
      ++right;
    else
      return status_text("a child", status), 3;
  }
  // A child may allocate, too.
  const pid_t child = fork();
  if (child == 0) {
    std::vector<Stretch> own = fill_memory(8);
    check_memory(own, "a child's own");
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  status_text("a child's own memory", status);
  check_memory(all, "after the children");
  std::printf("children: %s\n", right == 0 && signals > 0 ? "all died of SIGSEGV"
                                : signals == 0            ? "all right"
                                                          : "both");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return std::size_t(argc > i ? std::atoll(argv[i]) : 0); };
  if (verb == "stl") return stl();
  if (verb == "threads") return threads(argc > 2 ? number(2) : 24);
  if (verb == "check") return check(number(2));
  if (verb == "hold") return hold(number(2));
  if (verb == "end") return end(argc > 2 ? argv[2] : "", number(3));
  if (verb == "exec") return exec_other(argv[0], number(2));
  if (verb == "send") return send_objects(int(number(2)), number(3), int(number(4)));
  if (verb == "closes") return closes(number(2));
  if (verb == "replaces") return replaces(number(2));
  if (verb == "nulls") return nulls(number(2));
  if (verb == "fork-exec") return fork_exec(number(2));
  if (verb == "fork-touch") return fork_touch(number(2));
  std::fprintf(stderr, "run_program: unknown verb\n");
  return 2;
}
