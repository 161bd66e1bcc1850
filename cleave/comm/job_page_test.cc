#include "cleave/comm/job_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cleave {
namespace {

using testing::HasSubstr;

std::string refusal(Code code, int fd) {
  try {
    JobPage::attach(fd);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "attached";
  return "";
}

TEST(JobPage, Attached_IsTheSameMemory) {
  const auto page = JobPage::create_shared(3);
  const auto other = JobPage::attach(dup(page->fd()));
  EXPECT_EQ(other->num_ranks(), 3);
  page->rank(2).step.store(41);
  EXPECT_EQ(other->rank(2).step.load(), 41);
  EXPECT_TRUE(other->abort({.rank = 1, .code = Code::kIo, .group = "tp", .text = "disk full"}));
  EXPECT_EQ(page->aborted()->text, "disk full");
  EXPECT_EQ(page->aborted()->group, "tp");
}

TEST(JobPage, Memfd_CannotShrinkUnderItsRanks) {
  const auto page = JobPage::create_shared(1);
  EXPECT_NE(ftruncate(page->fd(), 0), 0);
}

TEST(JobPage, DescriptorsOfOtherThings_AreRefused) {
  refusal(Code::kUsage, -1);
  const int file = open("/dev/null", O_RDONLY);
  EXPECT_THAT(refusal(Code::kUsage, file), HasSubstr("is no job page"));
  const int unsealed = memfd_create("other", 0);
  ASSERT_EQ(ftruncate(unsealed, 1 << 20), 0);
  EXPECT_THAT(refusal(Code::kUsage, unsealed), HasSubstr("is no job page"));
  close(file);
  close(unsealed);
}

TEST(JobPage, OfAnotherVersion_IsRefusedWithBoth) {
  const int fd = memfd_create("other", MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  const uint64_t magic = kJobMagic + 4;
  ASSERT_EQ(write(fd, &magic, sizeof(magic)), ssize_t{sizeof(magic)});
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_THAT(refusal(Code::kShape, fd),
              HasSubstr(str("version ", kLayoutVersion + 4, ", this program ", kLayoutVersion)));
}

TEST(JobPage, ManyAbortsAtOnce_KeepOneWhole) {
  const auto page = JobPage::create_private(8);
  EXPECT_FALSE(page->is_aborted());
  EXPECT_FALSE(page->aborted().has_value());
  std::vector<std::thread> threads;
  std::atomic<int> num_first{0};
  for (int rank = 0; rank < 8; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string text = "cause of " + std::to_string(rank);
      num_first += page->abort({.rank = rank, .code = Code::kBug, .group = "", .text = text});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_first, 1);
  const Abort first = *page->aborted();
  EXPECT_EQ(first.text, "cause of " + std::to_string(first.rank));
}

// Its word will never be whole: the others may not wait for it, and may not overlook it.
TEST(JobPage, RankKilledWhileItTellsItsFailure_IsAFailure) {
  const auto page = JobPage::create_shared(2);
  void* memory =
      mmap(nullptr, sizeof(JobHeader), PROT_READ | PROT_WRITE, MAP_SHARED, page->fd(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  static_cast<JobHeader*>(memory)->abort.state.store(AbortState::kWriting);
  munmap(memory, sizeof(JobHeader));
  EXPECT_TRUE(page->is_aborted());
  ASSERT_TRUE(page->aborted().has_value());
  EXPECT_EQ(page->aborted()->code, Code::kPeer);
  EXPECT_EQ(page->aborted()->text, "a rank was killed");
}

TEST(JobPage, LongAbortText_IsCut) {
  const auto page = JobPage::create_private(1);
  page->abort({.rank = 0, .code = Code::kBug, .group = "", .text = std::string(5000, 'x')});
  EXPECT_EQ(page->aborted()->text, std::string(kAbortTextBytes - 1, 'x'));
}

TEST(JobPage, GroupOfOneKey_IsMadeOnce) {
  const auto page = JobPage::create_private(4);
  const std::vector<int> ranks{0, 1, 2, 3};
  std::vector<uint32_t> found(4);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] { found[rank] = page->join_group(77, ranks, "tp"); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const uint32_t index : found) EXPECT_EQ(index, found[0]);
  const GroupEntry& entry = page->group(found[0]);
  EXPECT_THAT(page->group_ranks(entry), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_STREQ(entry.name, "tp");
  EXPECT_NE(page->join_group(78, ranks, "dp"), found[0]);
}

TEST(JobPage, MoreGroupsThanFit_AreRefused) {
  const auto page = JobPage::create_private(1);
  const std::vector<int> ranks{0};
  uint64_t key = 1;
  try {
    for (; key < 1000; ++key) page->join_group(key, ranks, "x");
    ADD_FAILURE() << "all fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kMemory);
    EXPECT_EQ(key, uint64_t{kNumGroupsPerRank} + 1);
  }
}

TEST(JobPage, ManyGroupsOfProcesses_AllHaveRoom) {
  const auto page = JobPage::create_shared(4);
  const std::vector<int> ranks{0, 1, 2, 3};
  for (uint64_t key = 1; key <= kNumGroupsPerRank; ++key) {
    const GroupEntry& entry = page->group(page->join_group(key, ranks, "x"));
    EXPECT_GE(entry.payload_bytes, 16U << 10);
    page->payload(entry, 3, 1)[entry.payload_bytes - 1] = std::byte{1};
  }
}

}  // namespace
}  // namespace cleave
