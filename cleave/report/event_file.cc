#include "cleave/report/event_file.h"

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <iomanip>

#include "cleave/base/error.h"
#include "cleave/report/record.h"

namespace cleave::inline report {
namespace {

namespace fs = std::filesystem;

// Fields of the protocol buffers: the number times 8, plus how the value is stored.
constexpr char kWallTime = 0x09;     // of Event, double
constexpr char kStep = 0x10;         // of Event, varint
constexpr char kFileVersion = 0x1a;  // of Event, text
constexpr char kSummary = 0x2a;      // of Event, message
constexpr char kSession = 0x3a;      // of Event, message
constexpr char kStatus = 0x08;       // of SessionLog, varint
constexpr char kValue = 0x0a;        // of Summary, message
constexpr char kTag = 0x0a;          // of Value, text
constexpr char kSimpleValue = 0x15;  // of Value, float

constexpr uint64_t kSessionStarts = 1;

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(0x80 | (value & 0x7f));
  return out + static_cast<char>(value);
}

/// The lowest `count` bytes, the lowest first.
std::string little_endian(uint64_t value, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

std::string text_field(char tag, std::string_view text) {
  return std::string(1, tag).append(varint(text.size())).append(text);
}

std::string number_field(char tag, uint64_t value) {
  return tag + varint(value);
}

double unix_time_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string event_of(int64_t step, const std::string& content) {
  return kWallTime + little_endian(std::bit_cast<uint64_t>(unix_time_s()), 8) +
         number_field(kStep, static_cast<uint64_t>(step)) + content;
}

/// A value of a summary; "" if it is not known.
std::string value_field(std::string_view name, double value) {
  if (std::isnan(value)) return "";
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return text_field(kValue, text_field(kTag, name) + kSimpleValue + little_endian(bits, 4));
}

/// TensorFlow's files store checksums in this form, since the checksum of data that includes its
/// own checksum is constant.
uint32_t masked(uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8U;
}

std::string checksum_of(std::string_view bytes) {
  return little_endian(masked(crc32c(std::as_bytes(std::span(bytes)))), 4);
}

/// Sorted by time, as TensorBoard reads them.
fs::path new_name() {
  const double now = unix_time_s();
  const double seconds = std::floor(now);
  TextStream name;
  name << std::setfill('0') << "events.out.tfevents." << std::setw(10)
       << static_cast<int64_t>(seconds) << '.' << std::setw(6)
       << static_cast<int64_t>((now - seconds) * 1e6) << '.' << host_name();
  return std::move(name).str();
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed
  uint32_t crc = ~uint32_t{0};
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
  }
  return ~crc;
}

EventFile::EventFile(const fs::path& folder, int64_t first_step) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  CLEAVE_CHECK(!problem, Code::kIo, folder.string(), ": ", problem.message());
  file_ = File::create(folder / new_name());
  append(event_of(0, text_field(kFileVersion, "brain.Event:2")));
  append(event_of(first_step, text_field(kSession, number_field(kStatus, kSessionStarts))));
}

void EventFile::add(const StepMetrics& m) {
  append(event_of(
      m.step,
      text_field(kSummary,
                 value_field("train/loss", m.loss) + value_field("train/grad_norm", m.grad_norm) +
                     value_field("train/lr", m.lr) +
                     value_field("train/tokens", static_cast<double>(m.tokens)) +
                     value_field("train/tokens_per_s", m.tokens_per_s) +
                     value_field("train/step_ms", m.step_ms) +
                     value_field("train/comm_ms", m.comm_ms) +
                     value_field("train/peak_rss_bytes", static_cast<double>(m.peak_rss_bytes)) +
                     value_field("train/mfu", m.mfu) +
                     value_field("train/aux_loss", m.aux_loss.value_or(NAN)) +
                     value_field("train/reward_margin", m.reward_margin.value_or(NAN)) +
                     value_field("train/reward_accuracy", m.reward_accuracy.value_or(NAN)) +
                     value_field("eval/loss", m.eval_loss.value_or(NAN)) +
                     value_field("eval/accuracy", m.eval_accuracy.value_or(NAN)))));
}

/// A record: the length and its checksum, the event and its checksum.
void EventFile::append(std::string_view event) {
  const std::string length = little_endian(event.size(), 8);
  const std::string record = length + checksum_of(length) + std::string(event) + checksum_of(event);
  file_.write_at(size_, std::as_bytes(std::span(record)));
  size_ += record.size();
}

}  // namespace cleave::inline report
