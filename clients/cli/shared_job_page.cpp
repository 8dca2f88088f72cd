#include "clients/cli/shared_job_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

namespace terrace::cli {

SharedJobPage::~SharedJobPage() {
  if (page_ != nullptr) munmap(page_, runtime::kJobPageBytes);
  if (descriptor_ >= 0) close(descriptor_);
}

Status SharedJobPage::create(const Settings& settings, const std::string& socket_name) {
  descriptor_ = memfd_create("terrace-job", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor_ < 0) return Status::from_errno(errno, "memfd_create");
  if (ftruncate(descriptor_, runtime::kJobPageBytes) != 0)
    return Status::from_errno(errno, "ftruncate of the job page");
  if (fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status::from_errno(errno, "sealing the job page");
  }
  void* const memory =
      mmap(nullptr, runtime::kJobPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) return Status::from_errno(errno, "mapping the job page");
  page_ = new (memory) runtime::JobPage{};

  runtime::JobSettings& out = page_->settings;
  out.dram_bytes = settings.dram_bytes;
  out.min_object_bytes = settings.min_object_bytes;
  out.store_capacity_bytes = settings.store_capacity_bytes;
  out.force_eviction = std::uint32_t(settings.force_eviction);
  out.force_eviction_seed = settings.force_eviction_seed;
  out.policy = PolicyChoice(settings.policy) == PolicyChoice::lru ? runtime::PolicyKind::lru
                                                                  : runtime::PolicyKind::stream;
  out.io_timeout_ms = std::uint32_t(settings.io_timeout_s * 1000);
  out.io_depth = std::uint32_t(settings.io_depth);
  static_assert(sizeof out.store_directory == sizeof settings.store_directory.chars);
  std::memcpy(out.store_directory, settings.store_directory.chars, sizeof out.store_directory);
  if (socket_name.size() >= sizeof out.supervisor_socket) {
    return Status::failure(ErrorCode::invalid_argument, ENAMETOOLONG, "the socket's name");
  }
  std::memcpy(out.supervisor_socket, socket_name.c_str(), socket_name.size() + 1);

  page_->version = runtime::kJobPageVersion;
  page_->settings_bytes = sizeof(runtime::JobSettings);
  page_->magic = runtime::kJobPageMagic;
  return Status::success();
}

std::string SharedJobPage::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_);
}

}  // namespace terrace::cli
