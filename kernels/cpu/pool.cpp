// See pool.h. One job at a time; a second caller (another Python thread) works through its items alone.
#include "pool.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#ifndef _WIN32
#include <pthread.h>
#include <sched.h>
#endif

namespace {

constexpr int SPINS = 20000;        // of an idle worker before it sleeps, some 200 microseconds
constexpr int SPINS_BEFORE_YIELD = 2000;  // of a caller that waits for the last items

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Pool {
  std::mutex owner;
  std::mutex sleep_mutex;
  std::condition_variable wake;
  std::atomic<int> num_asleep{0};
  int num_workers = 0;
  // (job number << 32) | items left to claim: whoever claims an item knows that its job, and so the fields below,
  // stay until the item is done.
  alignas(64) std::atomic<uint64_t> claim{0};
  alignas(64) std::atomic<int64_t> num_done{0};
  alignas(64) std::atomic<int> num_threads{0};
  int64_t num_items = 0;
  void (*item)(void *, int64_t, int) = nullptr;
  void *context = nullptr;

  bool take(int worker) {
    uint64_t seen = claim.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(seen) != 0 && worker < num_threads.load(std::memory_order_relaxed)) {
      if (claim.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        item(context, num_items - static_cast<int64_t>(static_cast<uint32_t>(seen)), worker);
        num_done.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  void work(int worker) {
    for (int spins = 0;; ++spins) {
      if (take(worker)) {
        spins = 0;
      } else if (spins < SPINS) {
        relax();
      } else {
        std::unique_lock<std::mutex> lock(sleep_mutex);
        num_asleep.fetch_add(1);
        wake.wait(lock, [this] { return static_cast<uint32_t>(claim.load()) != 0; });
        num_asleep.fetch_sub(1);
        spins = 0;
      }
    }
  }

  void run(int64_t count, int threads, void (*function)(void *, int64_t, int), void *argument) {
    for (; num_workers < threads - 1; ++num_workers)
      std::thread(&Pool::work, this, num_workers + 1).detach();
    num_items = count;
    item = function;
    context = argument;
    num_threads.store(threads, std::memory_order_relaxed);
    num_done.store(0, std::memory_order_relaxed);
    const uint64_t job = (claim.load(std::memory_order_relaxed) >> 32) + 1;
    claim.store(job << 32 | static_cast<uint64_t>(count));  // sequentially consistent: seen by who falls asleep, or
    if (num_asleep.load() > 0) {                            // he is seen here
      std::lock_guard<std::mutex> lock(sleep_mutex);
      wake.notify_all();
    }
    while (take(0)) {
    }
    for (int spins = 0; num_done.load(std::memory_order_acquire) < count; ++spins) {
      relax();
#ifndef _WIN32
      if (spins > SPINS_BEFORE_YIELD) sched_yield();
#endif
    }
  }
};

Pool *pool = new Pool;  // never destroyed: its threads run until the process ends

#ifndef _WIN32
// A forked child has none of the parent's threads: it starts a pool of its own.
const int registered = pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
#endif

}  // namespace

void pool_run(int64_t num_items, int num_threads, void (*item)(void *, int64_t, int), void *context) {
  Pool *mine = pool;
  if (num_items < (int64_t(1) << 32) && mine->owner.try_lock()) {
    mine->run(num_items, num_threads, item, context);
    mine->owner.unlock();
    return;
  }
  for (int64_t index = 0; index < num_items; ++index) item(context, index, 0);
}
