// A program that goes round and round over more memory than it may have: plain malloc, nothing of Terrace in
// it.
//
// Nouns: a pass touches every object once; the word j of object i holds word(i, last writing pass, j), so
// each pass knows what it must find and a stale, misplaced or zero block cannot pass. Checking is a xor and
// an add a word, so that it vectorises and the memory stays the limit. Output: `base_rss_kib`, one `pass`
// line each with GB/s (bytes of the working set over wall time), one closing line. Exit status 1 when a byte
// was wrong.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace {

struct Options {
  std::size_t object_bytes = 2u << 20;
  std::size_t total_bytes = 2ul << 30;
  unsigned passes = 4;  // beside the one that fills
  std::string mode =
      "cyclic";  // cyclic, random (a fresh order each pass) or read (never written after the fill)
  std::uint64_t seed = 1;
  bool order_only = false;  // print the order of each pass instead of running, for the bound
};

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kStride = 0x2545f4914f6cdd1du;

std::uint64_t base_word(std::size_t object, unsigned pass) { return mix(object * 1000003u + pass); }

void fill(std::uint64_t* words, std::size_t count, std::uint64_t base) {
  for (std::size_t j = 0; j < count; ++j) words[j] = base + j * kStride;
}

// Wrong bits found; rewrites each word with the next pass's.
std::uint64_t check_and_write(std::uint64_t* words, std::size_t count, std::uint64_t expected,
                              std::uint64_t next) {
  std::uint64_t bad = 0;
  for (std::size_t j = 0; j < count; ++j) {
    bad |= words[j] ^ (expected + j * kStride);
    words[j] = next + j * kStride;
  }
  return bad;
}

std::uint64_t check(const std::uint64_t* words, std::size_t count, std::uint64_t expected) {
  std::uint64_t bad = 0;
  for (std::size_t j = 0; j < count; ++j) bad |= words[j] ^ (expected + j * kStride);
  return bad;
}

std::vector<std::size_t> order_of(const Options& o, std::size_t objects, unsigned pass) {
  std::vector<std::size_t> order(objects);
  std::iota(order.begin(), order.end(), 0u);
  if (o.mode != "random" || pass == 0) return order;
  std::uint64_t state = mix(o.seed * 7919 + pass);
  for (std::size_t i = objects; i > 1; --i) {
    state = mix(state);
    std::swap(order[i - 1], order[state % i]);
  }
  return order;
}

long rss_kib() {
  long pages = 0, resident = 0;
  if (FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%ld %ld", &pages, &resident) != 2) resident = 0;
    std::fclose(f);
  }
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

[[noreturn]] void usage() {
  std::fputs(
      "cyclic [--object BYTES] [--total BYTES] [--passes N] [--mode cyclic|random|read] [--seed N] "
      "[--order]\n",
      stderr);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--order") {
      o.order_only = true;
      continue;
    }
    if (++i >= argc) usage();
    if (name == "--object")
      o.object_bytes = std::strtoull(argv[i], nullptr, 10);
    else if (name == "--total")
      o.total_bytes = std::strtoull(argv[i], nullptr, 10);
    else if (name == "--passes")
      o.passes = static_cast<unsigned>(std::atoi(argv[i]));
    else if (name == "--mode")
      o.mode = argv[i];
    else if (name == "--seed")
      o.seed = std::strtoull(argv[i], nullptr, 10);
    else
      usage();
  }
  if (o.object_bytes < 8 || (o.mode != "cyclic" && o.mode != "random" && o.mode != "read")) usage();
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  const std::size_t objects = o.total_bytes / o.object_bytes;
  const std::size_t words = o.object_bytes / 8;
  if (o.order_only) {
    for (unsigned pass = 0; pass <= o.passes; ++pass) {
      for (std::size_t i : order_of(o, objects, pass)) std::printf("%zu ", i);
      std::printf("\n");
    }
    return 0;
  }

  std::printf("base_rss_kib %ld objects %zu\n", rss_kib(), objects);
  std::fflush(stdout);
  std::vector<std::uint64_t*> object(objects);
  std::uint64_t bad = 0;
  for (unsigned pass = 0; pass <= o.passes; ++pass) {
    const auto order = order_of(o, objects, pass);
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i : order) {
      if (pass == 0) {
        object[i] = static_cast<std::uint64_t*>(std::malloc(o.object_bytes));
        if (object[i] == nullptr) {
          std::fprintf(stderr, "cyclic: no memory for object %zu\n", i);
          return 3;
        }
        fill(object[i], words, base_word(i, 0));
      } else if (o.mode == "read") {
        bad |= check(object[i], words, base_word(i, 0));
      } else {
        bad |= check_and_write(object[i], words, base_word(i, pass - 1), base_word(i, pass));
      }
    }
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    getrusage(RUSAGE_SELF, &after);
    std::printf("pass %u s %.4f gbs %.3f major_faults %ld\n", pass, s, objects * words * 8.0 / s / 1e9,
                after.ru_majflt - before.ru_majflt);
    std::fflush(stdout);
    if (bad != 0) break;
  }
  for (std::uint64_t* p : object) std::free(p);
  std::printf("bytes %s\n", bad == 0 ? "right" : "WRONG");
  return bad == 0 ? 0 : 1;
}
