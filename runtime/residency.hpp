// Where a block is, and how it may get from there to elsewhere. The whole machine is one table; a test walks
// all pairs.
//
//   empty -> mapped -> staged_dirty -> writing -> staged_clean -> stored -> reading -> staged_clean -> mapped
//                         |  ^ failed     |            |
//                         |  same hash -> staged_clean  \ rescue -> mapped
//                         \ rescue -> mapped
//
// `writing` and `reading` are staged blocks with I/O in flight: their pages are pinned by the device and
// cannot move until it completes; a fault on them waits for that.
#pragma once

#include <cstdint>

namespace terrace::runtime {

enum class Residency : std::uint8_t {
  empty,         // never written: reads as zero
  mapped,        // in DRAM, the program reaches it
  staged_dirty,  // in the shadow, its stored copy missing or not yet compared
  writing,       // in the shadow, being written to the store
  staged_clean,  // in the shadow, equal to its stored copy
  stored,        // only in the store
  reading,       // on its way from the store into the shadow
};
inline constexpr std::uint32_t kResidencyCount = 7;

enum class Cause : std::uint8_t {
  populate,   // first touch, or a born block that kept its frames
  stage,      // taken out of the program's reach
  rescue,     // given back without I/O
  same_hash,  // frozen bytes equal the stored copy: nothing to write
  write_begin,
  write_done,
  write_failed,
  drop,  // its frames are wanted
  read_begin,
  read_done,  // all bytes came and their checksum holds
  read_failed,
};
inline constexpr std::uint32_t kCauseCount = 11;

struct Transition {
  bool allowed;
  Residency next;
};

Transition transition(Residency from, Cause cause);
// The next state; aborts on a pair that the table does not allow.
Residency next_residency(Residency from, Cause cause);
// How often next_residency() was asked for the pair in this process: for tests that claim to cover the table.
std::uint64_t transitions_taken(Residency from, Cause cause);
const char* to_text(Residency state);
const char* to_text(Cause cause);

}  // namespace terrace::runtime
