#include "cleave/comm/diagnostics/flight_log.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "cleave/comm/api/operation.h"

namespace cleave::inline comm {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kDone = 1U << 24;

uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

/// When the rank began its last operation in this segment, by its host's clock; 0 if it has none.
uint64_t last_begin_ns(const SharedSegment& segment, int rank) {
  const RankSlot& slot = segment.rank(rank);
  const uint64_t number = slot.num_operations.load(std::memory_order_acquire);
  return number == 0 ? 0 : log_read(slot, number - 1).begin_ns;
}

/// Whether the rank has written the record. A rank that is stopped between taking a number and
/// writing leaves the entry as it was: empty, or of kFlightLogLength operations ago.
bool is_written(const RankSlot& slot, const FlightRecord& record) {
  constexpr uint64_t kHalf = kFlightLogLength / 2;
  const bool may_be_old = record.number >= kFlightLogLength;
  const uint64_t since = may_be_old ? log_read(slot, record.number - kHalf).begin_ns : 0;
  return record.op != Op::kNone && record.begin_ns > since;
}

/// The last records that the rank has written, the newest first.
std::vector<FlightRecord> last_records(const RankSlot& slot) {
  // Started (asynchronous) calls may have begun and ended after the operation that the rank is in.
  constexpr uint64_t kMaxLookback = 4;
  const uint64_t number = slot.num_operations.load(std::memory_order_acquire);
  std::vector<FlightRecord> records;
  for (uint64_t back = 1; back <= std::min(number, kMaxLookback); ++back) {
    FlightRecord record = log_read(slot, number - back);
    if (is_written(slot, record)) records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

uint64_t log_begin(RankSlot& slot, const CallHeader& header, std::string_view site) {
  const uint64_t number = slot.num_operations.fetch_add(1, std::memory_order_acq_rel);
  FlightEntry& entry = slot.log[number % kFlightLogLength];
  uint64_t words[kSiteBytes / 8] = {};
  std::memcpy(words, site.data(), std::min<size_t>(site.size(), kSiteBytes));
  for (int i = 0; i < kSiteBytes / 8; ++i) entry.site[i].store(words[i], kRelaxed);
  entry.kind.store(static_cast<uint64_t>(header.op) | uint64_t{header.reduce_op} << 8 |
                       uint64_t{header.dtype} << 16 | uint64_t{header.group} << 32,
                   kRelaxed);
  entry.sequence.store(header.sequence, kRelaxed);
  entry.count.store(header.count, kRelaxed);
  entry.begin_ns.store(now_ns(), kRelaxed);
  return number;
}

void log_end(RankSlot& slot, uint64_t number) {
  FlightEntry& entry = slot.log[number % kFlightLogLength];
  entry.end_ns.store(now_ns(), kRelaxed);
  entry.kind.store(entry.kind.load(kRelaxed) | kDone, kRelaxed);
}

FlightRecord log_read(const RankSlot& slot, uint64_t number) {
  const FlightEntry& entry = slot.log[number % kFlightLogLength];
  FlightRecord record;
  record.number = number;
  const uint64_t kind = entry.kind.load(kRelaxed);
  record.op = static_cast<Op>(kind & 0xff);
  record.dtype = static_cast<uint8_t>(kind >> 16);
  record.is_done = (kind & kDone) != 0;
  record.group = static_cast<uint32_t>(kind >> 32);
  record.sequence = entry.sequence.load(kRelaxed);
  record.count = entry.count.load(kRelaxed);
  record.begin_ns = entry.begin_ns.load(kRelaxed);
  record.end_ns = entry.end_ns.load(kRelaxed);
  char site[kSiteBytes + 1] = {};
  for (int i = 0; i < kSiteBytes / 8; ++i) {
    const uint64_t word = entry.site[i].load(kRelaxed);
    std::memcpy(site + static_cast<ptrdiff_t>(i) * 8, &word, 8);
  }
  record.site = site;
  return record;
}

std::string describe(const FlightRecord& record, std::string_view axis) {
  std::string text = str(name(record.op), " ", record.sequence, " on axis ", axis);
  if (!record.site.empty()) text += " at " + record.site;
  return text;
}

std::string describe(const SharedSegment& segment, const FlightRecord& record) {
  return describe(record, segment.group(record.group).name);
}

std::optional<FlightRecord> current_operation(const SharedSegment& segment, int rank) {
  for (FlightRecord& record : last_records(segment.rank(rank))) {
    if (!record.is_done) return std::move(record);
  }
  return std::nullopt;
}

std::string describe_place(const SharedSegment& segment, int rank) {
  if (const auto record = current_operation(segment, rank)) {
    return "in " + describe(segment, *record);
  }
  const RankSlot& slot = segment.rank(rank);
  const std::vector<FlightRecord> last = last_records(slot);
  if (!last.empty()) return "after " + describe(segment, last.front());
  return slot.state.load() == RankState::kAbsent ? "not yet there" : "before its first operation";
}

std::string describe_place(const SharedSegment& segment, const SharedSegment* beside, int rank) {
  const bool is_beside =
      beside != nullptr && last_begin_ns(*beside, rank) > last_begin_ns(segment, rank);
  return describe_place(is_beside ? *beside : segment, rank);
}

std::string describe_step(const SharedSegment& segment, int rank) {
  const int64_t step = segment.rank(rank).step.load(kRelaxed);
  return step < 0 ? "" : str(" in step ", step);
}

}  // namespace cleave::inline comm
