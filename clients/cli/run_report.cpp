#include "clients/cli/run_report.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/clock.hpp"
#include "base/json.hpp"
#include "base/size_text.hpp"
#include "base/types.hpp"

namespace terrace::cli {

namespace {

using runtime::Fallback;

// What each fallback means and what would avoid it, in the order of Fallback.
constexpr const char* kFallbackRemedies[] = {
    "no io_uring, so the store is read and written call by call; allow io_uring (terrace doctor)",
    "the store's file system refuses O_DIRECT; put the store on ext4, xfs or btrfs",
    "pages were copied instead of moved; use Linux 6.8 or later, or unpin what is pinned",
    "processes whose memory was not managed; only the first one of a job that needs it is",
    "userfaultfd is not to be had, so nothing left DRAM; see terrace doctor",
    "the supervisor could not hold a duplicate of the userfaultfd; raise `ulimit -n`",
    "blocks that could not leave DRAM (pinned or not writable); unpin them, or give more --dram",
    "no address space for objects, so nothing left DRAM; raise `ulimit -v`",
    "malloc refused memory because the store has no room for it; free space there, or name another --store",
};
static_assert(sizeof kFallbackRemedies / sizeof *kFallbackRemedies == std::size_t(Fallback::count_));

std::uint64_t read(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

std::uint64_t dram_peak_bytes(const JobOutcome& outcome) {
  return std::max(read(outcome.page.counters.dram_peak_bytes), outcome.max_resident_bytes);
}

std::string size(std::uint64_t bytes) { return std::string(SizeText::rounded(bytes).view()); }

std::string seconds(std::uint64_t ns) {
  char text[40];
  const double s = double(ns) / double(kNsPerS);
  std::snprintf(text, sizeof text, s < 10 ? "%.2f s" : "%.1f s", s);
  return text;
}

}  // namespace

std::string summary_text(const JobOutcome& outcome) {
  const runtime::JobCounters& c = outcome.page.counters;
  std::string out = "terrace: " + seconds(outcome.wall_ns) + ", peak " + size(dram_peak_bytes(outcome)) +
                    " of " + size(outcome.settings.dram_bytes) + " DRAM";
  if (outcome.page.pager_pid.load(std::memory_order_relaxed) == 0 && read(c.bytes_out) == 0) {
    const bool over = dram_peak_bytes(outcome) > outcome.settings.dram_bytes;
    out += over ? ", beyond it: no memory was managed; see terrace doctor\n" : ", nothing had to leave it\n";
  } else {
    out += "; " + size(read(c.bytes_in)) + " in, " + size(read(c.bytes_out)) + " out, " +
           std::to_string(read(c.faults_demand)) + " faults, " + seconds(read(c.stall_ns)) + " stalled, " +
           std::to_string(read(c.blocks_stored)) + " blocks stored\n";
    if (const std::uint64_t peak = dram_peak_bytes(outcome), budget = outcome.settings.dram_bytes;
        peak > budget + budget / 20) {
      out += "terrace: --dram " + size(budget) +
             " is less than what cannot leave DRAM (libraries, small allocations, what is in use); --dram " +
             size(round_up(peak, kMiB)) + " would do\n";
    }
  }
  for (std::size_t i = 0; i < std::size_t(Fallback::count_); ++i) {
    const std::uint64_t count = read(outcome.page.fallbacks[i]);
    if (count == 0) continue;
    out += "terrace: " + std::string(runtime::kFallbackNames[i]) + " x" + std::to_string(count) + ": " +
           kFallbackRemedies[i] + "\n";
  }
  return out;
}

std::string stats_text(const JobOutcome& outcome) {
  const runtime::JobCounters& c = outcome.page.counters;
  JsonWriter json(2);
  json.begin_object();
  json.field("version", TERRACE_VERSION);
  json.field("wall_s", double(outcome.wall_ns) / double(kNsPerS));
  json.field("dram_budget_bytes", outcome.settings.dram_bytes);
  json.field("dram_peak_bytes", dram_peak_bytes(outcome));
  json.field("object_peak_bytes", read(c.object_peak_bytes));
  json.field("adopted_peak_bytes", 0);  // this version adopts nothing
  json.field("faults_demand", read(c.faults_demand));
  json.field("faults_rescued", read(c.faults_rescued));
  json.field("faults_first", read(c.faults_first));
  json.field("stall_s", double(read(c.stall_ns)) / double(kNsPerS));
  json.field("bytes_in", read(c.bytes_in));
  json.field("bytes_in_prefetched", read(c.bytes_in_prefetched));
  json.field("bytes_in_vain", read(c.bytes_in_vain));
  json.field("bytes_out", read(c.bytes_out));
  json.field("bytes_contiguous", read(c.bytes_contiguous));
  json.field("blocks_dropped_clean", read(c.blocks_dropped_clean));
  json.field("blocks_stored", read(c.blocks_stored));
  json.field("frames_recycled", read(c.frames_recycled));
  json.field("moves", read(c.moves));
  json.field("copies", read(c.copies));
  json.field("overshoots", read(c.overshoots));
  json.field("checksum_failures", read(c.checksum_failures));
  json.field("io_errors", read(c.io_errors));
  json.key("fallbacks").begin_object();
  for (std::size_t i = 0; i < std::size_t(Fallback::count_); ++i) {
    const std::uint64_t count = read(outcome.page.fallbacks[i]);
    if (count != 0) json.field(runtime::kFallbackNames[i], count);
  }
  json.end_object();
  json.field("policy", choice_name(*find_setting("policy"), outcome.settings.policy));
  json.key("period").null();  // no step finder in this version
  json.field("processes", outcome.page.processes.load(std::memory_order_relaxed));
  json.field("store_directory", outcome.settings.store_directory.view());
  json.field("exit_status", outcome.exit_status);
  json.end_object();
  return json.finish();
}

bool write_stats(const JobOutcome& outcome) {
  const std::string text = stats_text(outcome);
  const char* const path = outcome.settings.stats_file.chars;
  const bool to_stdout = std::strcmp(path, "-") == 0;
  const int descriptor =
      to_stdout ? STDOUT_FILENO : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  int error = descriptor < 0 ? errno : 0;
  for (std::size_t done = 0; error == 0 && done < text.size();) {
    const ssize_t written = write(descriptor, text.data() + done, text.size() - done);
    if (written >= 0)
      done += std::size_t(written);
    else if (errno != EINTR)
      error = errno;
  }
  if (!to_stdout && descriptor >= 0 && close(descriptor) != 0 && error == 0) error = errno;
  if (error == 0) return true;
  std::fprintf(stderr, "terrace: --stats '%s': %s; name a file that can be written\n", path,
               std::strerror(error));
  return false;
}

}  // namespace terrace::cli
