// One process's runtime: the heap that its allocator calls, the job page of its supervisor, and the pager
// once memory is short.
//
// Lazy: until live objects and the rest of the program reach 80 % of the budget there is no pager, no
// registration and no fault of ours. Without a job page (no `terrace run`) the heap works alone: recycled
// frames, no tiering.
//
// Threads: attach() once; the rest any. No libc heap, no stdio, errno preserved. Everything lives in static
// storage that is never destroyed, because the program may free memory after every destructor has run.
#pragma once

#include <cstdint>

#include "runtime/arena.hpp"
#include "runtime/heap.hpp"
#include "runtime/job_page.hpp"

namespace terrace::runtime {

enum class Attachment : std::uint8_t {
  owner,         // manages this job's objects
  alone,         // no supervisor: a heap without tiering
  pass_through,  // another process of the job manages objects: everything is libc's
};

class Runtime {
 public:
  // When the allocator is loaded: finds the job page and counts this process.
  void load();
  // Reserves the arena and makes the heap; claims the job of TERRACE_JOB if there is one. On failure (no
  // address space, a foreign job page) the process passes through.
  Attachment attach();

  Heap& heap();
  Arena& arena();
  // From the job page, else from TERRACE_MIN_OBJECT, else the default. Before attach() too.
  std::uint64_t min_object_bytes();
  bool pager_active() const;
  // In the child of a fork: what it shares with its parent. False: objects are not to be touched (they were
  // managed and are not mapped here); allocate from libc, ignore frees.
  bool child_after_fork();
};

Runtime& runtime();

}  // namespace terrace::runtime
