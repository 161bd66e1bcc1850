#include "cleave/data/number_lists.h"

#include <cerrno>
#include <filesystem>

#include <gtest/gtest.h>

#include "cleave/file/fault_hook.h"
#include "tests/support/memory.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::number_lists_test {
namespace {

namespace fs = std::filesystem;

/// Number k of list i, whose length is i mod 7.
int32_t number(int64_t i, int64_t k) {
  return static_cast<int32_t>(i * 7919 % 1'000'003 - 100 + k);
}

std::vector<int32_t> list(int64_t i) {
  std::vector<int32_t> numbers;
  for (int64_t k = 0; k < i % 7; ++k) numbers.push_back(number(i, k));
  return numbers;
}

// Oracle: the lists themselves, and the hash of one array. 600,000 lists of 3 numbers on average
// are 7 MB, and their places 5 MB: more than stays in memory.
TEST(NumberLists, InMemoryOrInAFile_AreThoseAppended) {
  constexpr int64_t kCount = 600'000;
  const test::TempFolder folder;
  std::vector<int32_t> numbers;
  std::vector<int64_t> starts{0};
  NumberLists memory(""), file(folder / "made" / "later");
  for (int64_t i = 0; i < kCount; ++i) {
    const std::vector<int32_t> next = list(i);
    memory.append(next);
    file.append(next);
    numbers.insert(numbers.end(), next.begin(), next.end());
    starts.push_back(static_cast<int64_t>(numbers.size()));
  }
  EXPECT_TRUE(fs::is_directory(folder / "made" / "later"));
  EXPECT_TRUE(fs::is_empty(folder / "made" / "later"));  // the file has no name
  Hasher all;
  all.update(std::as_bytes(std::span(numbers)));
  all.update(std::as_bytes(std::span(starts)));
  for (const NumberLists* lists : {&memory, &file}) {
    ASSERT_EQ(lists->size(), kCount);
    for (int64_t i = 0; i < kCount; i += 997) {
      const std::vector<int32_t> wanted = list(i);
      EXPECT_EQ(lists->list(i), std::vector<int64_t>(wanted.begin(), wanted.end())) << i;
    }
    const std::vector<int32_t> last = list(kCount - 1);
    EXPECT_EQ(lists->list(kCount - 1), std::vector<int64_t>(last.begin(), last.end()));
    Hasher hasher;
    lists->add_numbers_to(hasher);
    lists->add_starts_to(hasher);
    EXPECT_EQ(hasher.digest(), all.digest());
  }
}

// The numbers have five times the bytes that may be resident.
TEST(NumberLists, LargerThanTheMemory_StayBounded) {
  if (!test::reset_peak()) GTEST_SKIP() << "this kernel does not reset VmHWM";
  constexpr uint64_t kMostResident = uint64_t{24} << 20;
  const test::TempFolder folder;
  const std::vector<int32_t> block(1 << 16, 5);  // 256 KiB
  const uint64_t before = test::resident_bytes("VmRSS");
  ASSERT_TRUE(test::reset_peak());
  NumberLists lists(folder.path());
  for (uint64_t bytes = 0; bytes < 5 * kMostResident; bytes += 4 * block.size()) {
    lists.append(block);
  }
  EXPECT_LT(test::resident_bytes("VmHWM"), before + kMostResident);
  EXPECT_EQ(lists.list(lists.size() - 1).back(), 5);
}

TEST(NumberLists, FullDisk_IsAnIoErrorWithTheFolder) {
  const test::TempFolder folder;
  const ScopedFileHook full(
      [](FileCall call, const std::string&) { return call == FileCall::kWrite ? ENOSPC : 0; });
  NumberLists lists(folder.path());
  const std::vector<int32_t> block(1 << 16, 5);
  const Error error = test::thrown_by([&] {
    for (int i = 0; i < 100; ++i) lists.append(block);
  });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_NE(std::string(error.what()).find(folder.path().string()), std::string::npos);
}

}  // namespace
}  // namespace cleave::number_lists_test
