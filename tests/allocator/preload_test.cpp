// The preload library as a file, and unmodified programs under it.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

namespace {

const std::string kLibrary = TERRACE_PRELOAD_LIBRARY;
const std::string kPrograms = TERRACE_TEST_PROGRAMS;

struct Outcome {
  int status;  // as the shell's: 0, 1, 134 for SIGABRT, 124 for the time limit
  std::string output;
};
Outcome run(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  Outcome outcome{0, {}};
  std::array<char, 4096> buffer;
  while (std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), n);
  outcome.status = WEXITSTATUS(pclose(pipe));
  return outcome;
}
Outcome plain(const std::string& command) { return run("timeout -k 5 100 " + command); }
Outcome preloaded(const std::string& command, const std::string& environment = "") {
  return run("timeout -k 5 100 env " + environment + " LD_PRELOAD=" + kLibrary + " " + command);
}
bool can_run(const std::string& command) { return run(command + " >/dev/null").status == 0; }

}  // namespace

TEST_CASE("preload: the library exports the malloc family and nothing else") {
  const Outcome nm = run("nm -D --defined-only " + kLibrary);
  REQUIRE(nm.status == 0);
  std::set<std::string> names;
  std::istringstream lines(nm.output);
  for (std::string address, kind, name; lines >> address >> kind >> name;) names.insert(name);
  const std::set<std::string> family{"malloc",         "free",         "cfree",    "calloc",
                                     "realloc",        "reallocarray", "memalign", "aligned_alloc",
                                     "posix_memalign", "valloc",       "pvalloc",  "malloc_usable_size"};
  CHECK(names == family);
}

TEST_CASE("preload: the library needs libc alone") {
  const Outcome dynamic = run("readelf -dW " + kLibrary);
  REQUIRE(dynamic.status == 0);
  std::istringstream lines(dynamic.output);
  int needed = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("NEEDED") == std::string::npos) continue;
    needed++;
    CHECK(line.find("libc.so.6") != std::string::npos);
  }
  CHECK(needed == 1);
}

TEST_CASE("preload: the library takes at most 64 bytes of thread-local storage") {
  const Outcome headers = run("readelf -lW " + kLibrary);
  REQUIRE(headers.status == 0);
  std::istringstream lines(headers.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string type, offset, address, physical, file_bytes, memory_bytes;
    words >> type >> offset >> address >> physical >> file_bytes >> memory_bytes;
    if (type == "TLS") CHECK(std::stoul(memory_bytes, nullptr, 16) <= 64);
  }
}

TEST_CASE("preload: every edge case answers as under glibc") {
  const Outcome expected = plain(kPrograms + "/edge_cases"), got = preloaded(kPrograms + "/edge_cases");
  REQUIRE(expected.status == 0);
  CHECK(got.status == 0);
  CHECK(got.output == expected.output);
  CHECK(preloaded(kPrograms + "/edge_cases strict").status == 0);
  CHECK(preloaded("grep -c x", "").status == 1);  // no input; not "memory exhausted"
}

TEST_CASE("preload: contents survive alignment, realloc over the threshold, and reuse") {
  for (const char* environment :
       {"", "TERRACE_MIN_OBJECT=16KiB", "TERRACE_MIN_OBJECT=4MiB", "TERRACE_MIN_OBJECT=nonsense"}) {
    CAPTURE(environment);
    const Outcome got = preloaded(kPrograms + "/contents", environment);
    CHECK(got.status == 0);
    CHECK(got.output == "");
  }
}

TEST_CASE("preload: a limited address space leaves a working program") {
  // KiB: a smaller arena with 12 and 3 GB, none with 1.5.
  for (const std::string limit : {"12000000", "3000000", "1500000"}) {
    CAPTURE(limit);
    const Outcome got = run("ulimit -v " + limit + "; LD_PRELOAD=" + kLibrary + " " + kPrograms + "/churn");
    CHECK(got.status == 0);
  }
}

TEST_CASE("preload: a program that locks its memory holds what it asked for and no more") {
  const Outcome got = preloaded(kPrograms + "/locked");
  if (got.status == 77) {
    MESSAGE("skipped: mlockall is not allowed here");
    return;
  }
  CHECK(got.output == "");
  CHECK(got.status == 0);
}

TEST_CASE("preload: a program built with FORTIFY_SOURCE=3 may use all of malloc_usable_size") {
  const Outcome got = preloaded(kPrograms + "/fortified");
  CHECK(got.status == 0);
  CHECK(got.output == "fine\n");
}

TEST_CASE("preload: 200,000 blocks come and go without new mappings") {
  const Outcome got = preloaded(kPrograms + "/churn");
  MESSAGE(got.output);
  CHECK(got.status == 0);
}

TEST_CASE("preload: no child hangs after a fork among allocating threads") {
  const Outcome got = preloaded(kPrograms + "/forks 300");
  CHECK(got.output == "");
  CHECK(got.status == 0);
}

TEST_CASE("preload: malloc and free of a small block cost at most 8 instructions more than libc's") {
  if (!can_run("valgrind --version")) {
    MESSAGE("skipped: valgrind is missing");
    return;
  }
  const auto instructions = [](bool with, long pairs) {
    const std::string command = "valgrind --tool=callgrind --callgrind-out-file=/dev/null " + kPrograms +
                                "/pairs " + std::to_string(pairs);
    const Outcome got = with ? preloaded(command) : plain(command);
    REQUIRE(got.status == 0);
    const auto at = got.output.find("Collected :");
    REQUIRE(at != std::string::npos);
    return std::stol(got.output.substr(at + 11));
  };
  constexpr long kPairs = 20'000;
  const auto per_pair = [&](bool with) {
    return double(instructions(with, kPairs) - instructions(with, 0)) / kPairs;
  };
  const double more = per_pair(true) - per_pair(false);
  MESSAGE("instructions more a pair: " << more);
  CHECK(more <= 8.01);
}

TEST_CASE("preload: threads end cleanly and give their memory back") {
  const Outcome got = preloaded(kPrograms + "/thread_ends");
  CHECK(got.output == "");
  CHECK(got.status == 0);
}

TEST_CASE("preload: it can be opened after 40 libraries with thread-local storage") {
  std::string command = kPrograms + "/opens_late";
  const auto folder = std::filesystem::temp_directory_path() / ("terrace_tls_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  for (int i = 0; i < 40; i++) {
    const auto copy = folder / ("user" + std::to_string(i) + ".so");
    std::filesystem::copy_file(kPrograms + "/libtls_user.so", copy);
    command += " " + copy.string();
  }
  const Outcome got = plain(command + " " + kLibrary);
  std::filesystem::remove_all(folder);
  CHECK(got.output == "");
  CHECK(got.status == 0);
}

TEST_CASE("preload: NumPy computes the same with it as without") {
  const std::string job =
      "/usr/bin/python3 -c 'import numpy as n, zlib; r = n.random.default_rng(3); a = r.random((900, 900)); "
      "t = 0\n"
      "for i in range(20):\n"
      "  a = a @ a.T % 1 + n.zeros((900, 900)); t = zlib.crc32(n.concatenate([a, a * 2]).tobytes(), t)\n"
      "print(t)'";
  if (!can_run("/usr/bin/python3 -c 'import numpy'")) {
    MESSAGE("skipped: /usr/bin/python3 has no numpy");
    return;
  }
  const Outcome expected = plain(job), got = preloaded(job);
  REQUIRE(expected.status == 0);
  CHECK(got.status == 0);
  CHECK(got.output == expected.output);
}

TEST_CASE("preload: PyTorch loads and computes under it") {
  if (!can_run("/usr/bin/python3 -c 'import torch'")) {
    MESSAGE("skipped: /usr/bin/python3 has no torch");
    return;
  }
  const Outcome got =
      preloaded("/usr/bin/python3 -c 'import numpy, torch; print(int(torch.ones(3000, 3000).sum()))'");
  CHECK(got.output == "9000000\n");
}
