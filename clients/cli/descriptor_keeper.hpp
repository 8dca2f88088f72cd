// Takes duplicates of the job's userfaultfds and holds them, unread, until it is destroyed.
//
// Why: when the last descriptor of a userfaultfd closes while threads of a dying program are still inside
// `write` or `send`, the kernel lets their faults read as zeros, and those zeros go out. With a duplicate
// here they wait for their own death.
//
// Protocol: a stream socket in the abstract namespace; one message, the byte `U` with one descriptor
// (SCM_RIGHTS); answered by the byte `K` once it is held, or `R` when it was refused. Peers of another user
// are refused.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "base/status.hpp"

namespace terrace::cli {

class DescriptorKeeper {
 public:
  DescriptorKeeper() = default;
  DescriptorKeeper(const DescriptorKeeper&) = delete;
  DescriptorKeeper& operator=(const DescriptorKeeper&) = delete;
  ~DescriptorKeeper();

  // Listens under a random name. Errors: what socket, bind and listen give.
  Status open();
  const std::string& name() const { return name_; }

  // What to poll for; call handle() for each of these that is ready.
  void append_to(std::vector<pollfd>& polled) const;
  // Never blocks.
  void handle(int descriptor);

  std::size_t held() const { return held_.size(); }
  std::size_t refused() const { return refused_; }

 private:
  void accept_peers();
  void receive(int peer);
  bool keep(int descriptor);

  static constexpr std::size_t kPeersMax = 64;
  static constexpr std::size_t kHeldMax = 256;
  std::string name_;
  int listener_ = -1;
  std::vector<int> peers_;
  std::vector<int> held_;
  std::size_t refused_ = 0;
};

}  // namespace terrace::cli
