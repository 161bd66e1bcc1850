#include "cleave/torch_internals/memory_cache.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include <c10/core/CPUAllocator.h>

#include "cleave/base/error.h"

namespace cleave::inline torch_internals {
namespace {

constexpr size_t kPage = size_t{4} << 10;
constexpr size_t kHugePage = size_t{2} << 20;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeepsBlocks = false;  // the sanitizer cannot detect reads of kept blocks
#else
constexpr bool kKeepsBlocks = true;
#endif

bool poisons() {
  static const bool on = [] {
    const char* value = std::getenv("CLEAVE_POISON_MEMORY");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return on;
}

/// All bits set is a NaN of every floating-point type, and -1 of every integer type.
void poison(void* data, size_t num_bytes) {
  if (poisons()) std::memset(data, 0xFF, num_bytes);
}

/// Bytes that a thread has in use: blocks that it allocated, whichever thread frees them.
using InUse = std::atomic<size_t>;

/// Header before a tensor's memory; libtorch frees memory by its pointer alone.
struct alignas(64) Block {
  size_t size = 0;       // size class of the free list; 0: a small block of the C library
  size_t num_bytes = 0;  // requested
  // Counter of the allocating thread, which may have ended; null while on a free list.
  std::shared_ptr<InUse> in_use{};

  [[nodiscard]] void* data() { return this + 1; }
  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }
};

size_t rounded_up(size_t value, size_t step) {
  return (value + step - 1) / step * step;
}

/// Rounds up to one of eight sizes per power of two, so that a block fits requests of similar size.
size_t size_class(size_t num_bytes) {
  size_t power = kPage;
  while (power * 16 <= num_bytes) power *= 2;
  return rounded_up(num_bytes, power);
}

[[noreturn]] void fail(size_t num_bytes) {
  throw Error(Code::kMemory, str(MemoryCache::kNoMemory, " of ", num_bytes, " bytes"));
}

Block* block_at(void* data, size_t size) {
  return new (Block::of(data)) Block{.size = size};
}

/// Maps memory aligned to a page, or to a huge page if large enough, so that the kernel can back it
/// with huge pages. The page before it holds the Block header.
Block* map(size_t size) {
  const size_t step = size >= kHugePage ? kHugePage : kPage;
  void* start =
      mmap(nullptr, size + step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) fail(size);
  const auto begin = reinterpret_cast<uintptr_t>(start);
  const size_t before = rounded_up(begin + kPage, step) - begin;
  char* data = static_cast<char*>(start) + before;
  if (before > kPage) munmap(start, before - kPage);
  if (before < step) munmap(data + size, step - before);
  // A hint; it fails on a system without huge pages.
  if (step == kHugePage) madvise(data, size, MADV_HUGEPAGE);
  return block_at(data, size);
}

void unmap(Block* block) {
  const size_t size = block->size;
  munmap(static_cast<char*>(block->data()) - kPage, size + kPage);
}

size_t small_size(size_t num_bytes) {
  return rounded_up(num_bytes, sizeof(Block));
}

/// One thread's unused small blocks. A decoded token takes about a thousand, always of the same
/// sizes, and std::aligned_alloc is slow.
class SmallFreeList {
 public:
  SmallFreeList() = default;
  SmallFreeList(const SmallFreeList&) = delete;
  SmallFreeList& operator=(const SmallFreeList&) = delete;
  ~SmallFreeList() { clear(); }

  /// Null if there is none.
  void* take(size_t num_bytes) {
    Link*& first = links_[index_of(num_bytes)];
    if (first == nullptr) return nullptr;
    kept_ -= small_size(num_bytes);
    return std::exchange(first, first->next);
  }

  void put(void* memory, size_t num_bytes) {
    constexpr size_t kMost = size_t{1} << 20;
    kept_ += small_size(num_bytes);
    if (kept_ > kMost) {  // of sizes that are no longer used, maybe
      clear();
      kept_ = small_size(num_bytes);
    }
    Link*& first = links_[index_of(num_bytes)];
    first = new (memory) Link{first};
  }

 private:
  struct Link {
    Link* next;
  };
  static size_t index_of(size_t num_bytes) { return small_size(num_bytes) / sizeof(Block); }

  void clear() {
    for (Link*& first : links_) {
      while (first != nullptr) {
        std::free(std::exchange(first, first->next));  // NOLINT(cppcoreguidelines-no-malloc)
      }
    }
  }

  std::array<Link*, MemoryCache::kMinBytes / sizeof(Block) + 1> links_{};  // by size
  size_t kept_ = 0;
};

/// One thread's unused large blocks.
class FreeList {
 public:
  FreeList() = default;
  FreeList(const FreeList&) = delete;
  FreeList& operator=(const FreeList&) = delete;
  ~FreeList() { shrink_to(0); }

  Block* take(size_t num_bytes) {
    const size_t size = size_class(num_bytes);
    Block* block = find(size);
    if (block == nullptr) {
      shrink_to(keep_limit(size));
      block = map(size);
    }
    block->num_bytes = num_bytes;
    block->in_use = in_use_;
    const size_t before = in_use_->fetch_add(block->size, std::memory_order_relaxed);
    peak_in_use_ = std::max(peak_in_use_, before + block->size);
    return block;
  }

  /// Also keeps blocks that another thread allocated.
  void put(Block* block) {
    kept_ += block->size;
    blocks_[block->size].push_back(block);
    shrink_to(std::max(keep_limit(0), kHugePage));
  }

  [[nodiscard]] size_t kept() const { return kept_; }

 private:
  /// Bytes that may be kept when `size` more bytes than now are in use.
  [[nodiscard]] size_t keep_limit(size_t size) const {
    const size_t most = peak_in_use_ + peak_in_use_ / 10;
    const size_t in_use = in_use_->load(std::memory_order_relaxed) + size;
    return most > in_use ? most - in_use : 0;
  }

  /// The smallest kept block that fits and is at most 1.5 times `size`; null if none.
  Block* find(size_t size) {
    const auto found = blocks_.lower_bound(size);
    if (found == blocks_.end() || found->first > size + size / 2) return nullptr;
    Block* block = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) blocks_.erase(found);
    kept_ -= block->size;
    return block;
  }

  void shrink_to(size_t most) {
    while (kept_ > most) {
      const auto largest = std::prev(blocks_.end());
      Block* block = largest->second.back();
      largest->second.pop_back();
      kept_ -= block->size;
      if (largest->second.empty()) blocks_.erase(largest);
      unmap(block);
    }
  }

  std::map<size_t, std::vector<Block*>> blocks_;  // by size
  size_t kept_ = 0, peak_in_use_ = 0;
  std::shared_ptr<InUse> in_use_ = std::make_shared<InUse>(0);
};

// A tensor can outlive its thread's free list, e.g. the main thread's at exit.
thread_local bool is_free_list_gone = false;

bool keeps_blocks() {
  return kKeepsBlocks && !is_free_list_gone;
}

struct ThreadFreeLists {
  FreeList large;
  SmallFreeList small;
  ~ThreadFreeLists() { is_free_list_gone = true; }
};

ThreadFreeLists& lists() {
  thread_local ThreadFreeLists own;
  return own;
}

void report(Block& block, int64_t sign) {
  if (!c10::memoryProfilingEnabled()) return;
  c10::reportMemoryUsageToProfiler(block.data(), sign * static_cast<int64_t>(block.num_bytes), 0, 0,
                                   c10::Device(c10::DeviceType::CPU));
}

Block* small_block(size_t num_bytes) {
  void* start = keeps_blocks() ? lists().small.take(num_bytes) : nullptr;
  if (start == nullptr) {
    start = std::aligned_alloc(sizeof(Block), sizeof(Block) + small_size(num_bytes));
  }
  if (start == nullptr) fail(num_bytes);
  return new (start) Block{.num_bytes = num_bytes};
}

void free_small(Block* block) {
  const size_t num_bytes = block->num_bytes;
  if (keeps_blocks() && num_bytes < MemoryCache::kMinBytes) {
    lists().small.put(block, num_bytes);
  } else {
    std::free(block);  // NOLINT(cppcoreguidelines-no-malloc): of std::aligned_alloc
  }
}

void free_block(void* data) {
  if (data == nullptr) return;
  Block* block = Block::of(data);
  report(*block, -1);
  poison(data, block->num_bytes);
  if (block->size == 0) return free_small(block);
  block->in_use->fetch_sub(block->size, std::memory_order_relaxed);
  block->in_use.reset();
  if (is_free_list_gone) {
    unmap(block);
  } else {
    lists().large.put(block);
  }
}

}  // namespace

c10::DataPtr MemoryCache::allocate(size_t num_bytes) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (num_bytes == 0) return {nullptr, nullptr, &free_block, cpu};
  const bool is_large = keeps_blocks() && num_bytes >= kMinBytes;
  Block* block = is_large ? lists().large.take(num_bytes) : small_block(num_bytes);
  poison(block->data(), num_bytes);
  report(*block, 1);
  return {block->data(), block->data(), &free_block, cpu};
}

c10::DeleterFnPtr MemoryCache::raw_deleter() const {
  return &free_block;
}

void MemoryCache::copy_data(void* to, const void* from, size_t num_bytes) const {
  std::memcpy(to, from, num_bytes);
}

size_t MemoryCache::kept_bytes() {
  return lists().large.kept();
}

void use_memory_cache() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: tensors may be freed after main has returned.
    static auto* const cache = new MemoryCache();
    c10::SetCPUAllocator(cache, /*priority=*/1);
  });
}

bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string_view(error.what_without_backtrace()).find("allocate memory") !=
             std::string_view::npos;
}

namespace {
[[maybe_unused]] const bool kPoisonsFromTheStart = [] {
  if (poisons()) use_memory_cache();
  return true;
}();
}  // namespace

}  // namespace cleave::inline torch_internals
