#include "cleave/report/event_file.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace cleave::event_file_test {
namespace {

using test::TempFolder;

uint32_t crc_of(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text)));
}

// RFC 3720, B.4, and the common check value.
TEST(EventFile, Crc32c_HasThePublishedValues) {
  EXPECT_EQ(crc_of("123456789"), 0xe3069283U);
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc_of(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc_of(""), 0U);
}

template <class T>
T at(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& each : std::filesystem::directory_iterator(folder)) files.push_back(each.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// The events of the only file of a folder. Checks lengths and checksums by the format's
/// description: uint64 length, uint32 masked CRC of length, data, uint32 masked CRC of data.
std::vector<std::string> events_of(const std::filesystem::path& folder) {
  const auto files = files_of(folder);
  EXPECT_EQ(files.size(), 1U);
  const std::string bytes = read_file(files.at(0));
  const auto masked = [](std::string_view text) {
    const uint32_t crc = crc_of(text);
    return static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8U);
  };
  std::vector<std::string> events;
  size_t offset = 0;
  while (offset < bytes.size()) {
    const auto length = at<uint64_t>(bytes, offset);
    EXPECT_EQ(at<uint32_t>(bytes, offset + 8), masked(bytes.substr(offset, 8)));
    events.push_back(bytes.substr(offset + 12, length));
    EXPECT_EQ(at<uint32_t>(bytes, offset + 12 + length), masked(events.back()));
    offset += 16 + length;
  }
  EXPECT_EQ(offset, bytes.size());
  return events;
}

// Oracle: the bytes of the protocol buffers, by hand from event.proto and summary.proto.
TEST(EventFile, Bytes_AreThoseOfTheFormat) {
  const TempFolder folder;
  EventFile file(folder / "events", 5);
  file.add({.step = 300, .loss = 1.5, .lr = 0.25});
  const std::vector<std::string> events = events_of(folder / "events");
  ASSERT_EQ(events.size(), 3U);
  const double now = at<double>(events[0], 1);
  EXPECT_GT(now, 1.7e9);  // seconds since 1970
  EXPECT_LE(now, at<double>(events[2], 1));
  using std::string_literals::operator""s;
  EXPECT_EQ(events[0].substr(9), "\x10\x00\x1a\x0d"s + "brain.Event:2");
  EXPECT_EQ(events[1].substr(9), "\x10\x05\x3a\x02\x08\x01"s);  // a session starts at step 5
  const std::string loss = "\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\xc0\x3f"s;
  const std::string lr = "\x0a\x0f\x0a\x08train/lr\x15\x00\x00\x80\x3e"s;
  const std::string tokens = "\x0a\x13\x0a\x0ctrain/tokens\x15\x00\x00\x00\x00"s;
  const std::string rss = "\x0a\x1b\x0a\x14train/peak_rss_bytes\x15\x00\x00\x00\x00"s;
  const std::string values = loss + lr + tokens + rss;
  EXPECT_EQ(events[2].substr(9), "\x10\xac\x02\x2a"s + static_cast<char>(values.size()) + values);
}

constexpr const char* kReader = R"(
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
)";

// Oracle: TensorBoard's reader.
TEST(EventFile, ResumedRun_IsReadByTensorBoard) {
  if (!test::python_has("tensorboard")) GTEST_SKIP() << "CLEAVE_PYTHON has no tensorboard";
  const TempFolder folder;
  const std::string events = folder / "events";
  {
    EventFile first(events, 1);
    for (int step = 1; step <= 5; ++step) first.add({.step = step, .loss = 10.0 - step});
  }
  EventFile second(events, 4);  // resumed from the checkpoint of step 3
  for (int step = 4; step <= 6; ++step) {
    second.add({.step = step, .loss = 20.0 - step, .mfu = 0.5, .eval_loss = 2.0 * step});
  }
  const test::RunResult ran = test::run_python(kReader, {events});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const auto read = nlohmann::json::parse(ran.out);
  EXPECT_EQ(read.at("train/loss").dump(), "[[1,9.0],[2,8.0],[3,7.0],[4,16.0],[5,15.0],[6,14.0]]");
  EXPECT_EQ(read.at("train/mfu").dump(), "[[4,0.5],[5,0.5],[6,0.5]]");
  EXPECT_EQ(read.at("eval/loss").dump(), "[[4,8.0],[5,10.0],[6,12.0]]");
  EXPECT_FALSE(read.contains("train/grad_norm"));  // not known
}

}  // namespace
}  // namespace cleave::event_file_test
