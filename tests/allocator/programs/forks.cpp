// Eight threads allocate and free 1 B to 64 MiB while the main thread forks; each child allocates, frees and
// leaves.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

namespace {
std::atomic<bool> stop{false};
void* kept;

void work(unsigned seed) {
  std::minstd_rand random(seed);
  while (!stop) {
    const std::size_t bytes = 1 + random() % (std::size_t(1) << (random() % 27));
    auto* p = static_cast<volatile char*>(std::malloc(bytes));
    p[0] = 1;
    p[bytes - 1] = 1;
    std::free(const_cast<char*>(p));
  }
}
// A handler of another library that allocates large blocks while ours holds its lock.
void foreign() { std::free(std::malloc(1 << 20)); }
}  // namespace

int main(int argc, char** argv) {
  const int forks = argc > 1 ? std::atoi(argv[1]) : 1000;
  pthread_atfork(foreign, foreign, foreign);
  kept = std::malloc(3 << 20);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; t++) threads.emplace_back(work, t + 1);
  for (int i = 0; i < forks; i++) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);  // a child that hangs dies by it
      for (std::size_t bytes : {std::size_t(10), std::size_t(200'000), std::size_t(16) << 20}) {
        auto* p = static_cast<volatile char*>(std::malloc(bytes));
        p[0] = 1;
        p[bytes - 1] = 1;
        std::free(const_cast<char*>(p));
      }
      std::free(kept);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
      std::fprintf(stderr, "child %d of %d ended with status %d\n", i, forks, status);
      return 1;
    }
  }
  stop = true;
  for (auto& t : threads) t.join();
  return 0;
}
