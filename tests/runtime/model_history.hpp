// Histories for the model checker of the data plane: what one thread of a program does to its objects.
//
// Nouns: an *operation* acts on an object *slot* (a number, never a pointer) with an offset and a length that
// are taken modulo the object's size; on a slot in the wrong state it does nothing. So any part of a history
// is a history, and a failing one can be shrunk by leaving operations out. The same seed and options give the
// same history.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::runtime::test {

enum class Action : std::uint8_t {
  allocate,       // bytes undefined
  allocate_zero,  // as calloc
  free,
  resize,       // as realloc: in place, else by allocate, copy, free
  read,         // a part is compared with the shadow copy
  write,        // a part gets new bytes
  poke,         // single words all over the object get new values, each compared before
  copy,         // the kernel copies a part out to a pipe and back (write and read on it)
  drop,         // madvise(MADV_DONTNEED) of whole pages
  limit,        // the budget of objects changes to `length` bytes
  pause,        // `length` microseconds
  read_shared,  // an object that all threads read is compared
  spoil,        // a defect of the checker itself: one byte of the shadow copy is flipped
};
const char* to_text(Action action);

struct Operation {
  Action action = Action::pause;
  std::uint16_t object = 0;
  std::uint64_t offset = 0, length = 0;  // bytes
  std::uint64_t value = 0;               // names the bytes that are written, and the order of touching
};
using History = std::vector<Operation>;

struct HistoryOptions {
  std::uint64_t seed = 1;
  std::size_t operations = 200;
  std::uint16_t objects = 24;                                              // slots
  std::uint64_t most_live_bytes = 64 << 20;                                // of one thread's objects, about
  std::uint64_t least_limit_bytes = 8 << 20, most_limit_bytes = 72 << 20;  // of budget changes
  bool limits = true;
  std::uint16_t shared_objects = 0;
  bool spoil = false;  // with one `spoil` at the end: nothing may cover it up before all is compared
};

History make_history(const HistoryOptions& options);
std::string to_text(const Operation& operation);

// xorshift64*: the checker's own generator, so that a seed means the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull) {}
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Dull;
  }
  std::uint64_t below(std::uint64_t bound) { return (next() >> 16) % bound; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace terrace::runtime::test
