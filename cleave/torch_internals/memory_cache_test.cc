#include "cleave/torch_internals/memory_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "cleave/torch_internals/cpu_memory.h"

namespace cleave::memory_cache_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(MemoryCache, FreedBlock_IsReusedForTheSameSize) {
  MemoryCache cache;
  const void* first = nullptr;
  {
    const c10::DataPtr block = cache.allocate(3 * kMiB);
    first = block.get();
    std::memset(block.get(), 1, 3 * kMiB);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0U);
  }
  EXPECT_GE(MemoryCache::kept_bytes(), 3 * kMiB);
  const c10::DataPtr again = cache.allocate(3 * kMiB - 1000);
  EXPECT_EQ(again.get(), first);
}

TEST(MemoryCache, FreedSmallBlock_IsReusedForItsSizeAlone) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "blocks are not reused under the sanitizer";
#endif
  MemoryCache cache;
  const void* first = cache.allocate(1000).get();  // freed here
  const c10::DataPtr larger = cache.allocate(1025);
  EXPECT_NE(larger.get(), first);
  const c10::DataPtr again = cache.allocate(1024);
  EXPECT_EQ(again.get(), first);
  std::memset(again.get(), 1, 1024);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(again.get()) % 64, 0U);
}

// 100 sizes of 40 KiB and more are more than a thread keeps.
TEST(MemoryCache, ManySizesOfSmallBlocks_StayUsable) {
  MemoryCache cache;
  for (int round = 0; round < 3; ++round) {
    for (size_t size = 40960; size < 47360; size += 64) {
      const c10::DataPtr block = cache.allocate(size);
      std::memset(block.get(), round, size);
    }
  }
  const size_t kept = MemoryCache::kept_bytes();
  (void)cache.allocate(1000);
  EXPECT_EQ(MemoryCache::kept_bytes(), kept);  // small blocks are not counted
}

// libtorch's own allocator, which a program uses that does not call use_memory_cache().
TEST(MemoryCache, MemoryErrorOfLibtorch_IsRecognized) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer ends the program";
#endif
  try {
    (void)c10::GetDefaultCPUAllocator()->allocate(size_t{1} << 60);
    FAIL() << "2^60 bytes were allocated";
  } catch (const c10::Error& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.what_without_backtrace();
  }
  try {
    (void)at::ones({2}).matmul(at::ones({3}));
    FAIL() << "vectors of 2 and 3 elements were multiplied";
  } catch (const c10::Error& error) {
    EXPECT_FALSE(is_out_of_memory(error));
  }
}

TEST(MemoryCache, BlocksInUse_DoNotOverlap) {
  MemoryCache cache;
  std::vector<std::pair<c10::DataPtr, size_t>> blocks;
  for (const size_t size : {size_t{1}, size_t{100}, size_t{65535}, size_t{65536}, size_t{70000},
                            kMiB, kMiB + 1, 5 * kMiB}) {
    for (int copy = 0; copy < 3; ++copy) {
      blocks.emplace_back(cache.allocate(size), size);
      std::memset(blocks.back().first.get(), static_cast<int>(blocks.size()), size);
    }
    if (blocks.size() % 2 == 0) blocks.erase(blocks.begin());  // later allocations may reuse it
  }
  for (const auto& [block, size] : blocks) {
    const auto* bytes = static_cast<const unsigned char*>(block.get());
    for (size_t i = 1; i < size; ++i) ASSERT_EQ(bytes[i], bytes[0]) << size;
  }
}

TEST(MemoryCache, KeptMemory_StaysWithinATenthOfTheMostInUse) {
  std::thread([] {  // every thread has its own free list
    MemoryCache cache;
    for (size_t size = 64; size < 512; size += 37) {  // ever larger: no block fits the next one
      const c10::DataPtr block = cache.allocate(size << 10);
      EXPECT_LE(MemoryCache::kept_bytes(), size << 10);
    }
    { const c10::DataPtr large = cache.allocate(40 * kMiB); }
    EXPECT_LE(MemoryCache::kept_bytes(), 44 * kMiB);
    const c10::DataPtr other = cache.allocate(30 * kMiB);
    EXPECT_LE(MemoryCache::kept_bytes(), 14 * kMiB) << "30 and 14 are a tenth above 40";
  })
      .join();
}

TEST(MemoryCache, BlockOfAnotherThread_CanBeFreedHere) {
  MemoryCache cache;
  c10::DataPtr block;
  std::thread([&] {
    block = cache.allocate(2 * kMiB);
    std::memset(block.get(), 7, 2 * kMiB);
  }).join();
  EXPECT_EQ(static_cast<const char*>(block.get())[2 * kMiB - 1], 7);
  const void* address = block.get();
  block.clear();
  EXPECT_EQ(cache.allocate(2 * kMiB).get(), address);
}

TEST(MemoryCache, BlocksFreedOnOtherThreads_DoNotRaiseTheLimit) {
  std::thread([] {
    MemoryCache cache;
    for (int i = 0; i < 20; ++i) {  // one at a time: 8 MiB are in use at the most
      c10::DataPtr block = cache.allocate(8 * kMiB);
      std::thread([&] { block.clear(); }).join();
    }
    std::vector<c10::DataPtr> own;
    for (size_t size = 1; size <= 3; ++size) own.push_back(cache.allocate(size * kMiB));
    own.clear();  // 6 MiB in use
    for (size_t size = 4; size <= 8; ++size) cache.allocate(size * kMiB);
    EXPECT_LE(MemoryCache::kept_bytes(), 9 * kMiB);
  }).join();
}

TEST(MemoryCache, FreeingOtherThreadsBlocks_KeepsOwnBlocksCountedAsInUse) {
  std::thread([] {
    MemoryCache cache;
    const c10::DataPtr own = cache.allocate(20 * kMiB);
    for (int i = 0; i < 20; ++i) {
      c10::DataPtr block;
      std::thread([&] { block = cache.allocate(4 * kMiB); }).join();
      block.clear();
    }
    EXPECT_LE(MemoryCache::kept_bytes(), 2 * kMiB) << "a tenth more than the 20 in use";
  }).join();
}

TEST(MemoryCache, RawMemoryAndZeroBytes_Work) {
  MemoryCache cache;
  EXPECT_EQ(cache.allocate(0).get(), nullptr);
  for (const size_t size : {size_t{10}, 2 * kMiB}) {
    void* raw = cache.raw_allocate(size);
    std::memset(raw, 1, size);
    cache.raw_deallocate(raw);
  }
}

TEST(MemoryCache, MemoryReports_CountRequestedBytes) {
  MemoryCache cache;
  const CpuMemory memory;
  {
    const c10::DataPtr small = cache.allocate(1000), large = cache.allocate(3 * kMiB);
    EXPECT_EQ(memory.live(), static_cast<int64_t>(1000 + 3 * kMiB));
  }
  EXPECT_EQ(memory.live(), 0);
  EXPECT_EQ(memory.peak(), static_cast<int64_t>(1000 + 3 * kMiB));
}

// Run by ctest with poisoning on. Oracle: IEEE 754, in which all bits set is NaN.
TEST(MemoryCache, MemoryUnderPoison_HoldsNaNWhenNewAndWhenFreed) {
  const char* poison = std::getenv("CLEAVE_POISON_MEMORY");
  if (poison == nullptr || std::string(poison) != "1") {
    GTEST_SKIP() << "CLEAVE_POISON_MEMORY=1 is not in the environment; ctest --preset sets it";
  }
  EXPECT_TRUE(std::isnan(at::empty({1}, at::kFloat).item<float>())) << "the cache is not in use";
  MemoryCache cache;
  constexpr size_t kCount = 1000000;
  const float* freed = nullptr;
  {
    const c10::DataPtr block = cache.allocate(kCount * sizeof(float));
    auto* numbers = static_cast<float*>(block.get());
    EXPECT_TRUE(std::isnan(numbers[0]) && std::isnan(numbers[kCount - 1]));
    std::fill(numbers, numbers + kCount, 1.0F);
    freed = numbers;
  }
  if (MemoryCache::kept_bytes() == 0) return;  // the address sanitizer detects such reads
  EXPECT_TRUE(std::isnan(freed[0]) && std::isnan(freed[kCount - 1]));
}

}  // namespace
}  // namespace cleave::memory_cache_test
