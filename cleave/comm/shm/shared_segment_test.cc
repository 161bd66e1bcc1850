#include "cleave/comm/shm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cleave::shared_segment_test {
namespace {

using testing::HasSubstr;

std::string refusal(Code code, int fd) {
  try {
    SharedSegment::attach(fd);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "attached";
  return "";
}

TEST(SharedSegment, Attached_IsTheSameMemory) {
  const auto segment = SharedSegment::create_shared(3);
  const auto other = SharedSegment::attach(dup(segment->fd()));
  EXPECT_EQ(other->num_ranks(), 3);
  segment->rank(2).step.store(41);
  EXPECT_EQ(other->rank(2).step.load(), 41);
  EXPECT_TRUE(other->abort({.rank = 1, .code = Code::kIo, .group = "tp", .text = "disk full"}));
  EXPECT_EQ(segment->aborted()->text, "disk full");
  EXPECT_EQ(segment->aborted()->group, "tp");
}

TEST(SharedSegment, Memfd_CannotShrinkUnderItsRanks) {
  const auto segment = SharedSegment::create_shared(1);
  EXPECT_NE(ftruncate(segment->fd(), 0), 0);
}

TEST(SharedSegment, DescriptorsOfOtherThings_AreRefused) {
  refusal(Code::kUsage, -1);
  const int file = open("/dev/null", O_RDONLY);
  EXPECT_THAT(refusal(Code::kUsage, file), HasSubstr("is not a shared segment"));
  const int unsealed = memfd_create("other", 0);
  ASSERT_EQ(ftruncate(unsealed, 1 << 20), 0);
  EXPECT_THAT(refusal(Code::kUsage, unsealed), HasSubstr("is not a shared segment"));
  close(file);
  close(unsealed);
}

TEST(SharedSegment, OfAnotherVersion_IsRefusedWithBoth) {
  const int fd = memfd_create("other", MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  const uint64_t magic = kJobMagic + 4;
  ASSERT_EQ(write(fd, &magic, sizeof(magic)), ssize_t{sizeof(magic)});
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_THAT(refusal(Code::kShape, fd),
              HasSubstr(str("version ", kLayoutVersion + 4, ", this program ", kLayoutVersion)));
}

TEST(SharedSegment, ConcurrentAborts_KeepOneWhole) {
  const auto segment = SharedSegment::create_private(8);
  EXPECT_FALSE(segment->is_aborted());
  EXPECT_FALSE(segment->aborted().has_value());
  std::vector<std::thread> threads;
  std::atomic<int> num_first{0};
  for (int rank = 0; rank < 8; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string text = "cause of " + std::to_string(rank);
      num_first += segment->abort({.rank = rank, .code = Code::kBug, .group = "", .text = text});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_first, 1);
  const Abort first = *segment->aborted();
  EXPECT_EQ(first.text, "cause of " + std::to_string(first.rank));
}

// The record will never be complete: the other ranks must neither wait for it nor ignore it.
TEST(SharedSegment, RankKilledWhileRecordingItsFailure_IsAFailure) {
  const auto segment = SharedSegment::create_shared(2);
  void* memory =
      mmap(nullptr, sizeof(JobHeader), PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  static_cast<JobHeader*>(memory)->abort.state.store(AbortState::kWriting);
  munmap(memory, sizeof(JobHeader));
  EXPECT_TRUE(segment->is_aborted());
  ASSERT_TRUE(segment->aborted().has_value());
  EXPECT_EQ(segment->aborted()->code, Code::kPeer);
  EXPECT_EQ(segment->aborted()->text, "a rank was killed");
}

TEST(SharedSegment, LongAbortText_IsCut) {
  const auto segment = SharedSegment::create_private(1);
  segment->abort({.rank = 0, .code = Code::kBug, .group = "", .text = std::string(5000, 'x')});
  EXPECT_EQ(segment->aborted()->text, std::string(kAbortTextBytes - 1, 'x'));
}

TEST(SharedSegment, GroupOfOneKey_IsMadeOnce) {
  const auto segment = SharedSegment::create_private(4);
  const std::vector<int> ranks{0, 1, 2, 3};
  std::vector<uint32_t> found(4);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] { found[rank] = segment->join_group(77, ranks, "tp"); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const uint32_t index : found) EXPECT_EQ(index, found[0]);
  const GroupEntry& entry = segment->group(found[0]);
  EXPECT_THAT(segment->group_ranks(entry), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_STREQ(entry.name, "tp");
  EXPECT_NE(segment->join_group(78, ranks, "dp"), found[0]);
}

TEST(SharedSegment, MoreGroupsThanFit_AreRefused) {
  const auto segment = SharedSegment::create_private(1);
  const std::vector<int> ranks{0};
  uint64_t key = 1;
  try {
    for (; key < 1000; ++key) segment->join_group(key, ranks, "x");
    ADD_FAILURE() << "all fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kMemory);
    EXPECT_EQ(key, uint64_t{kNumGroupsPerRank} + 1);
  }
}

TEST(SharedSegment, ManyGroupsOfProcesses_AllHavePayloads) {
  const auto segment = SharedSegment::create_shared(4);
  const std::vector<int> ranks{0, 1, 2, 3};
  for (uint64_t key = 1; key <= kNumGroupsPerRank; ++key) {
    const GroupEntry& entry = segment->group(segment->join_group(key, ranks, "x"));
    EXPECT_GE(entry.payload_bytes, 16U << 10);
    segment->payload(entry, 3, 1)[entry.payload_bytes - 1] = std::byte{1};
  }
}

}  // namespace
}  // namespace cleave::shared_segment_test
