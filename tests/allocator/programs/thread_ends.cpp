// A thousand threads end, each with libc's own clean-up (resolver, locale, error texts) and with a key whose
// destructor frees one large block and allocates another. Prints nothing; fails when resident memory grows.
#include <netdb.h>
#include <pthread.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
pthread_key_t key;

void destroy(void* p) {
  std::free(p);
  auto* q = static_cast<volatile char*>(std::malloc(300'000));
  q[0] = 1;
  q[299'999] = 1;
  std::free(const_cast<char*>(q));
}
void* run(void*) {
  auto* p = static_cast<char*>(std::malloc(1 << 20));
  std::memset(p, 1, 1 << 20);
  pthread_setspecific(key, p);
  addrinfo* answer = nullptr;
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  if (getaddrinfo("127.0.0.1", nullptr, &hints, &answer) == 0) freeaddrinfo(answer);
  gethostbyname("127.0.0.1");
  locale_t c = newlocale(LC_ALL_MASK, "C", locale_t(nullptr));
  strerror_l(2, c);
  freelocale(c);
  std::setlocale(LC_ALL, nullptr);
  return nullptr;
}
long resident_pages() {
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  long size = 0, resident = 0;
  if (std::fscanf(f, "%ld %ld", &size, &resident) != 2) resident = 0;
  std::fclose(f);
  return resident;
}
}  // namespace

int main() {
  pthread_key_create(&key, destroy);
  long after_some = 0;
  for (int i = 0; i < 1000; i++) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, run, nullptr) != 0) return 2;
    pthread_join(thread, nullptr);
    if (i == 50) after_some = resident_pages();
  }
  const long grown_mib = (resident_pages() - after_some) * 4 / 1024;
  if (grown_mib > 8) std::fprintf(stderr, "resident memory grew by %ld MiB\n", grown_mib);
  return grown_mib > 8;
}
