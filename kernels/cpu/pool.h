// The thread pool of the CPU library: items of a job are claimed one by one by whoever is awake.
//
// Why not OpenMP: a fork/join with a fixed share for every thread waits for threads that the operating system has not
// scheduled. On a busy machine (a tokenizer, a server, another process on the same cores) that costs time slices, not
// microseconds, at some 200 joins a step. Here the caller works through the items itself and waits only for items
// that another thread has begun. Idle workers spin for a moment, so that they are hot within a step, and then sleep.
#pragma once
#include <stdint.h>

// Run item(context, index, worker) for index 0..num_items-1 on up to num_threads threads, the caller being worker 0;
// worker < num_threads. Returns when all items are done. Which thread takes an item must not change its result.
void pool_run(int64_t num_items, int num_threads, void (*item)(void *, int64_t, int), void *context);

template <typename F> static inline void parallel_for(int64_t num_items, int num_threads, const F &body) {
  if (num_items <= 1 || num_threads <= 1) {
    for (int64_t i = 0; i < num_items; ++i) body(i, 0);
    return;
  }
  pool_run(
      num_items, num_threads,
      [](void *context, int64_t index, int worker) { (*static_cast<const F *>(context))(index, worker); },
      const_cast<F *>(&body));
}
