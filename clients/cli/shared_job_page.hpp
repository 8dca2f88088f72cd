// The supervisor's side of the page that it shares with its job (runtime/job_page.hpp): makes, names and
// fills it.
//
// Invariant: the page can neither shrink nor grow, so no process of the job dies of SIGBUS on it.
#pragma once

#include <string>

#include "base/settings.hpp"
#include "base/status.hpp"
#include "runtime/job_page.hpp"

namespace terrace::cli {

class SharedJobPage {
 public:
  SharedJobPage() = default;
  SharedJobPage(const SharedJobPage&) = delete;
  SharedJobPage& operator=(const SharedJobPage&) = delete;
  ~SharedJobPage();

  // Errors: what memfd_create, ftruncate, fcntl and mmap give.
  Status create(const Settings& settings, const std::string& socket_name);
  // The value of TERRACE_JOB: a path that processes of the same user can open while this one lives.
  std::string path() const;
  runtime::JobPage& page() const { return *page_; }

 private:
  runtime::JobPage* page_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace terrace::cli
