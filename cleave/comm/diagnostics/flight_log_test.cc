#include <cstdlib>
#include <fstream>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/api/operation.h"
#include "cleave/comm/diagnostics/flight_file.h"
#include "tests/support/process_roles.h"

namespace cleave::flight_log_test {
namespace {

class FlightLog : public testing::Test {
 protected:
  FlightLog() { group_ = segment_->join_group(5, std::vector<int>{0, 1}, "tp"); }

  uint64_t begin(uint64_t sequence) {
    const Operation operation{.op = Op::kAllReduce,
                              .dtype = DType::kBf16,
                              .count = 12,
                              .widths = {},
                              .call = {.site = "mlp", .shape = {}}};
    return log_begin(segment_->rank(0), make_header(operation, group_, sequence), "mlp");
  }

  std::shared_ptr<SharedSegment> segment_ = SharedSegment::create_private(2);
  uint32_t group_ = 0;
};

TEST_F(FlightLog, Place_ShowsTheStateOfTheLastOperation) {
  EXPECT_EQ(describe_place(*segment_, 1), "not yet there");
  segment_->rank(1).state.store(RankState::kJoined);
  EXPECT_EQ(describe_place(*segment_, 1), "before its first operation");
  const uint64_t number = begin(412);
  EXPECT_EQ(describe_place(*segment_, 0), "in all_reduce 412 on axis tp at mlp");
  log_end(segment_->rank(0), number);
  EXPECT_EQ(describe_place(*segment_, 0), "after all_reduce 412 on axis tp at mlp");
  EXPECT_EQ(describe_step(*segment_, 0), "");
  segment_->rank(0).step.store(37);
  EXPECT_EQ(describe_step(*segment_, 0), " in step 37");
}

// As if the rank were stopped after it took a number, before it writes the record.
TEST_F(FlightLog, RecordThatIsNotWritten_IsNoPlace) {
  RankSlot& slot = segment_->rank(0);
  slot.state.store(RankState::kJoined);
  slot.num_operations.fetch_add(1);
  EXPECT_EQ(describe_place(*segment_, 0), "before its first operation");
  uint64_t sequence = 1;
  for (; sequence <= 2; ++sequence) log_end(slot, begin(sequence));
  slot.num_operations.fetch_add(1);
  EXPECT_EQ(describe_place(*segment_, 0), "after all_reduce 2 on axis tp at mlp");
  for (; sequence <= 300; ++sequence) log_end(slot, begin(sequence));
  slot.num_operations.fetch_add(1);  // the entry has the operation of 256 operations ago
  EXPECT_EQ(describe_place(*segment_, 0), "after all_reduce 300 on axis tp at mlp");
  begin(301);
  slot.num_operations.fetch_add(1);
  EXPECT_EQ(describe_place(*segment_, 0), "in all_reduce 301 on axis tp at mlp");
}

TEST_F(FlightLog, EveryStateOfARank_HasItsName) {
  const std::vector<std::pair<RankState, std::string>> states = {{RankState::kAbsent, "absent"},
                                                                 {RankState::kJoined, "joined"},
                                                                 {RankState::kLeft, "left"},
                                                                 {RankState::kUnwound, "unwound"}};
  for (const auto& [state, name] : states) {
    segment_->rank(1).state.store(state);
    EXPECT_EQ(take_flight_log(*segment_, 0, "x").ranks[1].state, name);
  }
}

TEST_F(FlightLog, Record_KeepsTheCall) {
  const uint64_t number = begin(9);
  log_end(segment_->rank(0), number);
  const FlightRecord record = log_read(segment_->rank(0), number);
  EXPECT_EQ(record.op, Op::kAllReduce);
  EXPECT_TRUE(record.is_done);
  EXPECT_EQ(record.sequence, 9U);
  EXPECT_EQ(record.count, 12U);
  EXPECT_EQ(record.dtype, static_cast<uint8_t>(DType::kBf16));
  EXPECT_EQ(record.site, "mlp");
  EXPECT_LE(record.begin_ns, record.end_ns);
}

TEST_F(FlightLog, File_HasTheLast256Operations) {
  for (uint64_t sequence = 1; sequence <= 300; ++sequence) {
    const uint64_t number = begin(sequence);
    if (sequence < 300) log_end(segment_->rank(0), number);
  }
  segment_->rank(0).step.store(7);
  const TestFolder folder;
  const std::string path = write_flight_log(*segment_, 0, folder / "", "rank 1 is stuck");
  EXPECT_THAT(path, testing::HasSubstr("/flight_log."));
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  const cleave::FlightLog log = read_flight_log(path);
  EXPECT_EQ(log.why, "rank 1 is stuck");
  EXPECT_EQ(log.written_by, 0);
  ASSERT_EQ(log.axes.size(), 1U);
  EXPECT_EQ(log.axes[0].name, "tp");
  EXPECT_THAT(log.axes[0].ranks, testing::ElementsAre(0, 1));
  ASSERT_EQ(log.ranks.size(), 2U);
  EXPECT_EQ(log.ranks[0].step, 7);
  EXPECT_EQ(log.ranks[0].num_operations, 300U);
  ASSERT_EQ(log.ranks[0].operations.size(), size_t{kFlightLogLength});
  for (size_t i = 0; i < log.ranks[0].operations.size(); ++i) {
    const FlightRecord& record = log.ranks[0].operations[i];
    EXPECT_EQ(record.number, 300 - kFlightLogLength + i);
    EXPECT_EQ(record.sequence, record.number + 1);
    EXPECT_EQ(record.op, Op::kAllReduce);
    EXPECT_EQ(record.dtype, static_cast<uint8_t>(DType::kBf16));
    EXPECT_EQ(record.count, 12U);
    EXPECT_EQ(record.site, "mlp");
    EXPECT_EQ(record.is_done, record.number < 299);
  }
  EXPECT_EQ(describe_place(log, log.ranks[0]), "in all_reduce 300 on axis tp at mlp");
  EXPECT_EQ(describe_place(log, log.ranks[1]), "not yet there");
}

TEST_F(FlightLog, RankThatOthersWaitForAndThatWaitsForNobody_IsStuck) {
  const auto segment = SharedSegment::create_private(4);
  const uint32_t all = segment->join_group(9, std::vector<int>{0, 1, 2, 3}, "dp");
  for (const int rank : {0, 1, 3}) {  // rank 2 never arrives
    segment->member(segment->group(all), rank).stamp.store(1);
    RankSlot& slot = segment->rank(rank);
    slot.wait_kind.store(WaitKind::kGroup);
    slot.wait_group.store(all);
    slot.wait_stamp.store(1);
    slot.wait_epoch.store(1);
  }
  const auto log = take_flight_log(*segment, 3, "x");
  EXPECT_THAT(log.ranks[0].waits_for, testing::ElementsAre(2));
  EXPECT_THAT(stuck_ranks(log), testing::ElementsAre(2));
}

TEST_F(FlightLog, TextOfAnySite_IsReadAsItWasWritten) {
  const Operation operation{.op = Op::kBarrier, .widths = {}, .call = {.site = "", .shape = {}}};
  log_begin(segment_->rank(1), make_header(operation, group_, 1), "a\"b\\\n\t'");
  const TestFolder folder;
  const auto log = read_flight_log(write_flight_log(*segment_, 0, folder / "", "why: \"x\"\n"));
  ASSERT_EQ(log.ranks[1].operations.size(), 1U);
  EXPECT_EQ(log.ranks[1].operations[0].site, "a\"b\\\n\t'");
  EXPECT_EQ(log.why, "why: \"x\"\n");
}

TEST_F(FlightLog, DamagedFiles_AreRefusedWithTheirPlace) {
  begin(1);
  const TestFolder folder;
  const std::string path = write_flight_log(*segment_, 0, folder / "", "x");
  const std::string whole = read_file(path);
  const auto refused = [&](std::string_view from, std::string_view to) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(path) << text;
    try {
      read_flight_log(path);
      ADD_FAILURE() << to << " was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kFormat) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(path));
    }
  };
  refused("\"flight_log\":1", "\"flight_log\":2");
  refused("all_reduce", "all_seduce");
  refused("bf16", "bf17");
  refused("\"axis\":0", "\"axis\":1");
  refused("\"axis\":0", "\"axis\":-1");
  refused("\"ranks\":[0,1]", "\"ranks\":[0,4096]");
  refused("\"rank\":1", "\"rank\":0");
  refused("\"count\":12", "\"count\":1e99");
  refused(whole, whole.substr(0, whole.size() / 2));
}

TEST_F(FlightLog, FolderThatDoesNotExist_IsAnIoError) {
  try {
    write_flight_log(*segment_, 0, "/no/such/folder", "x");
    ADD_FAILURE() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.what(), testing::HasSubstr("/no/such/folder/flight_log."));
  }
}

TEST(FlightLogFolder, WithoutARunFolder_IsTmpdirOrTmp) {
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  setenv("TMPDIR", "/somewhere", 1);
  EXPECT_EQ(temporary_flight_logs(), "/somewhere");
  setenv("TMPDIR", "", 1);
  EXPECT_EQ(temporary_flight_logs(), "/tmp");
  unsetenv("TMPDIR");
  EXPECT_EQ(temporary_flight_logs(), "/tmp");
  if (before != nullptr) setenv("TMPDIR", kept.c_str(), 1);
}

}  // namespace
}  // namespace cleave::flight_log_test
