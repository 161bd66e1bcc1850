#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace cleave::inline comm {

/// Sleeps while `word` holds `seen`, at most `limit`; may return early. Works between threads and
/// between processes that share the segment.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::milliseconds limit);

/// Wakes every thread of every process that sleeps on `word`.
void futex_wake_all(const std::atomic<uint32_t>& word);

/// A hint to the core that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace cleave::inline comm
