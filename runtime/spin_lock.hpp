// A lock for code inside malloc: spins a little, then sleeps on a futex. No thread-local data, no libc.
//
// It may be held over a fork (hold_for_fork): until release_after_fork the holding thread passes its own
// lock() freely, because other libraries' fork handlers, which run while we hold it, allocate too. Threads:
// any of one process; the word is not for sharing between processes.
#pragma once

#include <linux/futex.h>

#include <atomic>
#include <cstdint>

#include "base/syscall.hpp"

namespace terrace::runtime {

class SpinLock {
 public:
  void lock() {
    std::uint32_t expected = kFree;
    if (word_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire)) return;
    if (held_for_fork_by_me()) return;
    lock_contended();
  }
  void unlock() {
    if (held_for_fork_by_me()) return;
    if (word_.exchange(kFree, std::memory_order_release) == kWaited)
      sys(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, 0);
  }

  void hold_for_fork() {
    lock();
    fork_holder_.store(self(), std::memory_order_relaxed);
  }
  // In the parent and in the child (whose one thread has the holder's thread pointer).
  void release_after_fork() {
    fork_holder_.store(0, std::memory_order_relaxed);
    unlock();
  }

 private:
  static constexpr std::uint32_t kFree = 0, kHeld = 1, kWaited = 2;
  static constexpr int kSpins = 200;

  static std::uintptr_t self() { return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer()); }
  bool held_for_fork_by_me() const { return fork_holder_.load(std::memory_order_relaxed) == self(); }

  [[gnu::noinline]] void lock_contended() {
    for (int i = 0; i < kSpins; i++) {
      std::uint32_t expected = kFree;
      if (word_.load(std::memory_order_relaxed) == kFree &&
          word_.compare_exchange_weak(expected, kHeld, std::memory_order_acquire)) {
        return;
      }
      __builtin_ia32_pause();
    }
    while (word_.exchange(kWaited, std::memory_order_acquire) != kFree) {
      sys(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, kWaited, 0);
    }
  }

  std::atomic<std::uint32_t> word_{kFree};
  std::atomic<std::uintptr_t> fork_holder_{0};
};

}  // namespace terrace::runtime
