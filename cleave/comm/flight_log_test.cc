#include "cleave/comm/flight_log.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/operation.h"
#include "cleave/comm/process_roles.h"

namespace cleave {
namespace {

class FlightLog : public testing::Test {
 protected:
  FlightLog() { group_ = page_->join_group(5, std::vector<int>{0, 1}, "tp"); }

  uint64_t begin(uint64_t sequence) {
    const Operation operation{.op = Op::kAllReduce,
                              .dtype = DType::kBf16,
                              .count = 12,
                              .widths = {},
                              .call = {.site = "mlp", .shape = {}}};
    return log_begin(page_->rank(0), make_header(operation, group_, sequence), "mlp");
  }

  std::shared_ptr<JobPage> page_ = JobPage::create_private(2);
  uint32_t group_ = 0;
};

TEST_F(FlightLog, Place_TellsTheStateOfTheLastOperation) {
  EXPECT_EQ(describe_place(*page_, 1), "not yet there");
  page_->rank(1).state.store(RankState::kJoined);
  EXPECT_EQ(describe_place(*page_, 1), "before its first operation");
  const uint64_t number = begin(412);
  EXPECT_EQ(describe_place(*page_, 0), "in all_reduce 412 on axis tp at mlp");
  log_end(page_->rank(0), number);
  EXPECT_EQ(describe_place(*page_, 0), "after all_reduce 412 on axis tp at mlp");
  EXPECT_EQ(describe_step(*page_, 0), "");
  page_->rank(0).step.store(37);
  EXPECT_EQ(describe_step(*page_, 0), " in step 37");
}

TEST_F(FlightLog, Record_KeepsWhatWasAskedFor) {
  const uint64_t number = begin(9);
  log_end(page_->rank(0), number);
  const FlightRecord record = log_read(page_->rank(0), number);
  EXPECT_EQ(record.op, Op::kAllReduce);
  EXPECT_TRUE(record.is_done);
  EXPECT_EQ(record.sequence, 9U);
  EXPECT_EQ(record.count, 12U);
  EXPECT_EQ(record.dtype, static_cast<uint8_t>(DType::kBf16));
  EXPECT_EQ(record.site, "mlp");
  EXPECT_LE(record.begin_ns, record.end_ns);
}

TEST_F(FlightLog, File_HasTheLast256Operations) {
  for (uint64_t sequence = 1; sequence <= 300; ++sequence) begin(sequence);
  const TestFolder folder;
  std::istringstream lines(read_file(write_flight_log(*page_, folder / "", "rank 1 is stuck")));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "# rank 1 is stuck");
  std::getline(lines, line);
  EXPECT_THAT(line, testing::StartsWith("rank\tnumber\top\tsequence\taxis\tdtype\tcount"));
  int64_t expected = 300 - kFlightLogLength;
  while (std::getline(lines, line)) {
    EXPECT_THAT(line, testing::StartsWith(str("0\t", expected, "\tall_reduce\t", expected + 1,
                                              "\ttp\tbf16\t12\t")));
    ++expected;
  }
  EXPECT_EQ(expected, 300);
}

TEST_F(FlightLog, FolderThatDoesNotExist_IsAnIoError) {
  try {
    write_flight_log(*page_, "/no/such/folder", "x");
    ADD_FAILURE() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.what(), testing::HasSubstr("/no/such/folder/flight_log."));
  }
}

}  // namespace
}  // namespace cleave
