#include "tests/runtime/model_history.hpp"

#include <algorithm>
#include <cstdio>

#include "base/types.hpp"

namespace terrace::runtime::test {
namespace {

// Whole blocks, pieces of classes, odd sizes around the borders of pages, granules and chunks.
std::uint64_t some_size(Random& random) {
  switch (random.below(8)) {
    case 0: return 64 * kKiB + random.below(192 * kKiB);
    case 1: return kChunkBytes;
    case 2: return kChunkBytes * (1 + random.below(4));
    case 3: return kGranuleBytes * (4 + random.below(250));
    case 4: return kChunkBytes + random.below(3) * kPageBytes - random.below(3) + 1;
    case 5: return 1 + 64 * kKiB * (1 + random.below(128));
    case 6: return 64 * kKiB << random.below(6);
    default: return 64 * kKiB + random.below(8 * kMiB - 64 * kKiB);
  }
}

// A part of an object: all of it, a few words, a few pages, anything.
void some_part(Random& random, Operation& operation) {
  switch (random.below(6)) {
    case 0:
    case 1:
      operation.offset = 0;
      operation.length = ~std::uint64_t{0};
      break;
    case 2:
      operation.offset = random.below(8 * kMiB);
      operation.length = 1 + random.below(64);
      break;
    case 3:
      operation.offset = round_down(random.below(8 * kMiB), kPageBytes);
      operation.length = kPageBytes * (1 + random.below(16));
      break;
    case 4:
      operation.offset = round_down(random.below(8 * kMiB), kChunkBytes);
      operation.length = kChunkBytes;
      break;
    default:
      operation.offset = random.below(8 * kMiB);
      operation.length = 1 + random.below(4 * kMiB);
      break;
  }
}

Action some_action(Random& random, const HistoryOptions& options) {
  const std::uint64_t pick = random.below(100);
  if (pick < 16) return random.chance(3) ? Action::allocate_zero : Action::allocate;
  if (pick < 21) return Action::free;
  if (pick < 26) return Action::resize;
  if (pick < 50) return options.shared_objects != 0 && random.chance(3) ? Action::read_shared : Action::read;
  if (pick < 74) return Action::write;
  if (pick < 82) return Action::poke;
  if (pick < 86) return Action::copy;
  if (pick < 92) return Action::drop;
  if (pick < 97) return options.limits ? Action::limit : Action::read;
  return Action::pause;
}

}  // namespace

const char* to_text(Action action) {
  constexpr const char* kNames[] = {"allocate", "allocate_zero", "free", "resize", "read",
                                    "write",    "poke",          "copy", "drop",   "limit",
                                    "pause",    "read_shared",   "spoil"};
  return kNames[std::size_t(action)];
}

std::string to_text(const Operation& o) {
  char text[160];
  if (o.action == Action::limit || o.action == Action::pause)
    std::snprintf(text, sizeof text, "%s %llu", to_text(o.action), (unsigned long long)o.length);
  else
    std::snprintf(text, sizeof text, "%s object=%u offset=%llu length=%lld value=%llx", to_text(o.action),
                  o.object, (unsigned long long)o.offset, (long long)o.length, (unsigned long long)o.value);
  return text;
}

History make_history(const HistoryOptions& options) {
  Random random(options.seed);
  History history;
  history.reserve(options.operations + 1);
  std::vector<std::uint64_t> sizes(options.objects, 0);  // as far as the history goes by plan
  std::uint64_t live = 0;
  // Passes over all objects in order make the policies learn, and read ahead.
  std::uint16_t walk = 0, walk_left = 0;
  Action walk_action = Action::read;
  while (history.size() < options.operations) {
    Operation o;
    o.value = random.next() >> 8;
    o.object = std::uint16_t(random.below(options.objects));
    if (walk_left != 0) {
      o.action = walk_action;
      o.object = walk++ % options.objects;
      o.length = ~std::uint64_t{0};
      walk_left--;
      if (sizes[o.object] == 0) continue;
      history.push_back(o);
      continue;
    }
    if (random.chance(25)) {
      walk = 0;
      walk_left = std::uint16_t(options.objects * (1 + random.below(2)));
      walk_action = random.chance(3) ? Action::write : Action::read;
      continue;
    }
    o.action = some_action(random, options);
    std::uint64_t& size = sizes[o.object];
    switch (o.action) {
      case Action::allocate:
      case Action::allocate_zero:
        if (size != 0) continue;
        o.length = some_size(random);
        if (live + o.length > options.most_live_bytes) continue;
        live += size = o.length;
        break;
      case Action::free:
        live -= size;
        size = 0;
        break;
      case Action::resize:
        o.length = random.chance(2) ? some_size(random) : size + random.below(2 * kGranuleBytes) + 1;
        if (size == 0 || live - size + o.length > options.most_live_bytes) continue;
        live += o.length - size;
        size = o.length;
        break;
      case Action::limit:
        o.length = random.chance(2) ? options.least_limit_bytes
                                    : options.least_limit_bytes +
                                          random.below(options.most_limit_bytes - options.least_limit_bytes);
        break;
      case Action::pause: o.length = random.below(random.chance(4) ? 20'000 : 2'000); break;
      case Action::read_shared: o.object = std::uint16_t(random.below(options.shared_objects)); break;
      default:
        if (size == 0) continue;
        some_part(random, o);
        break;
    }
    history.push_back(o);
  }
  if (options.spoil) {
    history.push_back({Action::spoil, 0, 0, 0, random.next()});
  }
  return history;
}

}  // namespace terrace::runtime::test
