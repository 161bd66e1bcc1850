#pragma once
#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::inline report {

/// What a rank does during an event of a recorded step.
enum class EventKind : uint8_t {
  kPhase,       ///< a part of the step, e.g. "gradient norm"
  kAction,      ///< an action of the pipeline's schedule
  kForward,     ///< a layer's forward
  kRecompute,   ///< a layer's forward that runs again during backward
  kBackward,    ///< backward of the graph nodes that a layer's forward made
  kOptimizer,   ///< the update of the weights
  kCollective,  ///< a collective or a message
  kWait,        ///< the rank waits for a collective that a helper thread runs
};
inline constexpr int kNumEventKinds = 8;

/// "phase", "pipeline", "forward", "recompute", "backward", "optimizer", "collective", "wait".
std::string_view name(EventKind kind);

/// One event. Events of a track are nested or apart.
struct StepEvent {
  EventKind kind = EventKind::kPhase;
  int name = 0;            ///< index of RankRecording::names: a layer's path, a collective's site
  int track = 0;           ///< 0: the rank's thread; i + 1: the helper thread of axes[i]
  double begin_s = 0;      ///< since the step began
  double end_s = 0;        ///< since the step began
  double cpu_begin_s = 0;  ///< CPU time of the track's thread since the step began
  double cpu_s = 0;        ///< CPU time of the track's thread during the event
  int call = -1;           ///< index of RankRecording::calls, of a collective or the wait for it
  double wait_s = 0;       ///< of the time, spent waiting for partners; set_waiting() sets it
};

/// One rank's part in a collective or message. Calls with the same axis and ranks, and the same
/// operation and number, belong together; so do a send and a recv of the same number.
struct StepCall {
  std::string op{};  ///< "all_reduce", "send", ...
  int axis = 0;      ///< index of RankRecording::axes
  int64_t number =
      0;          ///< of the group's collectives in this step, or of the messages of a direction
  int peer = -1;  ///< rank of the axis at the other end of a message; -1: a collective
  int64_t bytes = 0;  ///< of the whole tensor
  int64_t sent = 0;   ///< bytes to other ranks, by bandwidth-optimal algorithms (ring)
};

/// Kinds of tensor memory, in the order of MemorySample::bytes.
inline constexpr std::array<std::string_view, 5> kMemoryKinds{
    "weights", "optimizer", "gradients", "gathered weights", "activations and buffers"};

/// Bytes of a rank's tensors at a time.
struct MemorySample {
  double at_s = 0;  ///< since the step began
  std::array<int64_t, kMemoryKinds.size()> bytes{};
  /// Bytes of all kinds.
  [[nodiscard]] int64_t total() const {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  }
};

/// The part of a weight that a rank holds.
struct WeightPart {
  int name = 0;                                  ///< index of RankRecording::names
  std::vector<int64_t> shape{};                  ///< whole
  int64_t dim = -1;                              ///< dim that tensor parallelism shards; -1: none
  std::vector<std::array<int64_t, 2>> ranges{};  ///< of that dim, [begin, end)
  int64_t numel = 0;                             ///< elements of the tensor-parallel part
  /// Range of these elements, flattened, that the rank keeps; all of them unless ZeRO or FSDP
  /// shards the leaf. After the gather the rank has all of them.
  int64_t flat_begin = 0, flat_end = 0;
  bool is_gathered = false;  ///< FSDP gathers it for forward and backward
};

/// A group of ranks that call collectives together.
struct RecordedAxis {
  std::string name{};
  std::vector<int> ranks{};  ///< world ranks, ascending
};

/// What one rank did in a step.
struct RankRecording {
  int rank = 0;
  std::string host{};
  double aligned_s = 0;    ///< the rank's clock when the step began on all ranks
  double step_s = 0;       ///< to the end of the update
  double comm_end_s = 0;   ///< when metrics.jsonl's comm_ms ends: before the update
  double products_s = 0;   ///< of the step, in matrix products
  double attention_s = 0;  ///< of the step, in attention beside its products
  std::vector<std::string> names{};
  std::vector<RecordedAxis> axes{};
  std::vector<StepCall> calls{};
  std::vector<StepEvent> events{};  ///< by track; in a track by begin, outer ones first
  std::vector<MemorySample> memory{};
  std::vector<WeightPart> weights{};
  int64_t num_left_out = 0;  ///< events beyond the recorder's limit
};

/// A recording as JSON, and back. recording_of throws Error(kFormat).
std::string json_of(const RankRecording& recording);
RankRecording recording_of(const std::string& json);

/// A rank's seconds in the collectives that comm_ms of metrics.jsonl counts: on the axes tp, pp,
/// dp, ep and the copies of experts, called by the rank's thread before the update.
double comm_seconds(const RankRecording& recording);

}  // namespace cleave::inline report
