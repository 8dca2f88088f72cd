#include "clients/cli/descriptor_keeper.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace terrace::cli {

DescriptorKeeper::~DescriptorKeeper() {
  for (const int peer : peers_) close(peer);
  for (const int descriptor : held_) close(descriptor);
  if (listener_ >= 0) close(listener_);
}

Status DescriptorKeeper::open() {
  std::uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) return Status::from_errno(errno, "getrandom");
  char name[40];
  std::snprintf(name, sizeof name, "terrace-%016llx", static_cast<unsigned long long>(random));
  name_ = name;
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0) return Status::from_errno(errno, "a Unix socket");
  sockaddr_un address = {.sun_family = AF_UNIX};
  std::memcpy(address.sun_path + 1, name_.data(), name_.size());  // the leading 0 makes it abstract
  const auto size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0)
    return Status::from_errno(errno, "bind");
  if (listen(listener_, 16) != 0) return Status::from_errno(errno, "listen");
  return Status::success();
}

void DescriptorKeeper::append_to(std::vector<pollfd>& polled) const {
  polled.push_back({.fd = listener_, .events = POLLIN, .revents = 0});
  for (const int peer : peers_) polled.push_back({.fd = peer, .events = POLLIN, .revents = 0});
}

void DescriptorKeeper::handle(int descriptor) {
  if (descriptor == listener_) return accept_peers();
  if (std::find(peers_.begin(), peers_.end(), descriptor) != peers_.end()) receive(descriptor);
}

void DescriptorKeeper::accept_peers() {
  for (;;) {
    const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (peer < 0) return;
    ucred who = {};
    socklen_t size = sizeof who;
    const bool known = getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid();
    if (known && peers_.size() < kPeersMax) {
      peers_.push_back(peer);
    } else {
      ++refused_;
      close(peer);
    }
  }
}

void DescriptorKeeper::receive(int peer) {
  char byte = 0;
  iovec part = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  const ssize_t got = recvmsg(peer, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  std::vector<int> received;
  if (got >= 0) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int descriptor;
        std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
        received.push_back(descriptor);
      }
    }
  }
  // Descriptors that did not fit (no room in our table, or more than one) were cut: what came is not what was
  // sent.
  const bool whole = got == 1 && byte == 'U' && received.size() == 1 && (message.msg_flags & MSG_CTRUNC) == 0;
  const bool kept = whole && keep(received[0]);
  if (!kept) {
    for (const int descriptor : received) close(descriptor);
    if (got > 0) ++refused_;
  }
  const char answer = kept ? 'K' : 'R';
  if (got > 0) (void)send(peer, &answer, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  close(peer);
  std::erase(peers_, peer);
}

bool DescriptorKeeper::keep(int descriptor) {
  char link[64], target[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, target, sizeof target);
  constexpr std::string_view kKind = "anon_inode:[userfaultfd]";
  if (length <= 0 || std::string_view(target, std::size_t(length)) != kKind || held_.size() >= kHeldMax)
    return false;
  held_.push_back(descriptor);
  return true;
}

}  // namespace terrace::cli
