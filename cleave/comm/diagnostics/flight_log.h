#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cleave/comm/shm/shared_segment.h"

namespace cleave::inline comm {

/// One operation in the flight log.
struct FlightRecord {
  uint64_t number = 0;  ///< of the rank's operations, from 0
  Op op = Op::kNone;
  bool is_done = false;
  uint32_t group = 0;  ///< index in the shared segment
  uint64_t sequence = 0;
  uint64_t count = 0;
  uint8_t dtype = 0;
  uint64_t begin_ns = 0;  ///< steady clock
  uint64_t end_ns = 0;
  std::string site;
};

/// Records that the rank begins an operation; returns its number for log_end().
uint64_t log_begin(RankSlot& slot, const CallHeader& header, std::string_view site);

/// Records that the operation with this number is done.
void log_end(RankSlot& slot, uint64_t number);

/// The operation with this number; numbers before num_operations - 256 are overwritten.
FlightRecord log_read(const RankSlot& slot, uint64_t number);

/// "all_reduce 412 on axis tp at model.layers.3.mlp".
std::string describe(const FlightRecord& record, std::string_view axis);
std::string describe(const SharedSegment& segment, const FlightRecord& record);

/// The operation in which a rank is in this segment.
std::optional<FlightRecord> current_operation(const SharedSegment& segment, int rank);

/// Where a rank is: "in all_reduce 412 on axis tp at x", or "after barrier 3 on axis dp at y",
/// or "before its first operation".
std::string describe_place(const SharedSegment& segment, int rank);

/// The same for a rank that uses two segments, its replica and its host's: describes the one in
/// which the rank began its last operation. `beside` may be nullptr.
std::string describe_place(const SharedSegment& segment, const SharedSegment* beside, int rank);

/// " in step 37", or "" if the rank never reported its step.
std::string describe_step(const SharedSegment& segment, int rank);

}  // namespace cleave::inline comm
