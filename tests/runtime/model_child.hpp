// Runs a part of a test in a child process with a time limit, for what may hang, abort or end by a pager's
// fatal line.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace terrace::runtime::test {

// What a child tells: one text, kept in memory shared with its parent.
class Note {
 public:
  explicit Note(char* text) : text_(text) {}
  // Printf into the note; returns `code`, so that a child can end with `return note.say(3, ...)`.
  [[gnu::format(printf, 3, 4)]] int say(int code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text_, kBytes, format, arguments);
    va_end(arguments);
    return code;
  }
  static constexpr std::size_t kBytes = 1024;

 private:
  char* text_;
};

struct ChildResult {
  bool in_time = true;
  int code = -1;  // exit status, or 128 + signal
  double seconds = 0;
  std::string text;  // the note
};

// `body(note)` returns the exit status. The child ends at once: threads that hang in it do not matter.
template <typename Body>
ChildResult in_child(int timeout_s, Body body) {
  auto* const shared = static_cast<char*>(
      mmap(nullptr, Note::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::fflush(nullptr);
  const auto started = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Note note(shared);
    const int code = body(note);
    syscall(SYS_exit_group,
            code);  // not _exit, which a thread sanitizer takes as its time to report what hangs
  }
  ChildResult result;
  int status = 0;
  const auto since = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (since() > timeout_s) {
      result.in_time = false;
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    usleep(1000);
  }
  result.seconds = since();
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.text = shared;
  munmap(shared, Note::kBytes);
  return result;
}

}  // namespace terrace::runtime::test
