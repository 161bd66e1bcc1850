#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/comm/api/group.h"
#include "cleave/report/step_events.h"

namespace cleave::inline runtime {

/// A collective or message that a rank begins.
struct BegunCall {
  std::string_view op;    ///< "all_reduce", ...
  std::string_view site;  ///< who calls
  int64_t bytes = 0;      ///< of the whole tensor
  int64_t sent = 0;       ///< bytes to other ranks, by bandwidth-optimal algorithms (ring)
  int peer = -1;          ///< rank of the group at the other end of a message
};

/// The time of a collective on a helper thread. The helper calls run(); the recorder reads the
/// times once it has ended.
class HelperCall {
 public:
  HelperCall(int call, int name, int track) : call_(call), name_(name), track_(track) {}
  /// Runs the collective and notes its time.
  template <class Collective>
  void run(const Collective& collective) {
    begin();
    collective();
    end();
  }

 private:
  friend class StepRecorder;
  void begin();
  void end();
  int call_, name_, track_;
  double begin_s_ = 0, end_s_ = 0, cpu_s_ = 0;
  std::atomic<bool> has_ended_{false};
};

/// Records what this rank does while it is alive, on the thread that made it. It never waits for
/// other ranks and changes no result. Without one, active() is null, and a layer or collective
/// costs one test of a pointer. At most `kMostEvents` events and `kMostSamples` samples of memory
/// are kept. A second one on the same thread is Error(kBug).
class StepRecorder {
 public:
  static constexpr size_t kMostEvents = 50'000;
  static constexpr size_t kMostSamples = 2'000;
  /// Bytes by kind, in the order of kMemoryKinds.
  using Memory = std::function<std::array<int64_t, report::kMemoryKinds.size()>()>;

  /// `memory` gives the bytes of the rank's tensors now, by kind.
  explicit StepRecorder(Memory memory);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// The recorder of this thread, or null.
  static StepRecorder* active();

  /// Begins an event on this thread, inside those that have begun.
  void begin(EventKind kind, std::string_view name);
  /// Begins a collective of `group` on this thread. Returns the time.
  double begin_call(const Group& group, const BegunCall& call);
  /// Begins the wait for a collective on a helper thread. Returns the time.
  double begin_wait(const HelperCall& helper);
  /// Ends the event that began last. Returns the time.
  double end();
  /// Notes a collective that the group's helper thread will run.
  std::shared_ptr<HelperCall> start_helper(const Group& group, const BegunCall& call);

  /// A layer's forward, around the graph nodes numbered from `first_node` on; end_layer gets the
  /// number of the next node.
  void begin_layer(std::string_view path, uint64_t first_node);
  void end_layer(uint64_t next_node);
  /// Backward of a graph node: an event of the layer that made it. Nodes of one layer that follow
  /// each other are one event. `number` is the node's; `name` stands for it outside of layers.
  void begin_node(std::string_view name, uint64_t number);
  void end_node();

  /// metrics.jsonl's comm_ms counts collectives until now.
  void note_comm_end();

  /// Adds a weight whose name has name_index().
  void add_weight(WeightPart part) { out_.weights.push_back(std::move(part)); }

  /// Ends the recording and returns it; times count from `origin_s` of the clock monotonic_s().
  [[nodiscard]] RankRecording finish(double origin_s);

  /// The index of `name` in RankRecording::names.
  int name_index(std::string_view name);

 private:
  struct Frame {
    int event = -1;     // -1: not recorded
    int backward = -1;  // the last event below it, if that is a backward that may be extended
  };
  double push(EventKind kind, int name, int call);
  int axis_index(const Group& group);
  int note_call(const Group& group, const BegunCall& call);
  void sample_memory(double now);

  Memory memory_;
  RankRecording out_;
  std::map<std::string, int, std::less<>> name_indices_;
  std::map<const Group*, int> axis_indices_;
  std::map<std::pair<int, int>, int64_t> num_calls_;  // by axis and direction
  std::vector<Frame> frames_{Frame{}};
  int num_nodes_ = 0;                              // graph nodes that run now
  std::vector<std::pair<uint64_t, int>> made_by_;  // graph nodes from a number on: name or -1
  std::vector<int> layers_;                        // that run forward now: names
  std::vector<std::shared_ptr<HelperCall>> helpers_;
  double began_cpu_s_ = 0, next_sample_s_ = 0, sample_every_s_ = 1e-4;
};

/// An event from here to the end of the scope, if this thread has a recorder.
class RecordedScope {
 public:
  RecordedScope(EventKind kind, std::string_view name) : recorder_(StepRecorder::active()) {
    if (recorder_ != nullptr) recorder_->begin(kind, name);
  }
  ~RecordedScope() {
    if (recorder_ != nullptr) recorder_->end();
  }
  RecordedScope(const RecordedScope&) = delete;
  RecordedScope& operator=(const RecordedScope&) = delete;

 private:
  StepRecorder* recorder_;
};

/// Returns work(), recorded as a phase of the step if this thread has a recorder.
template <class Work>
auto recorded(std::string_view phase, const Work& work) {
  const RecordedScope scope(EventKind::kPhase, phase);
  return work();
}

/// CPU seconds of the calling thread.
double thread_cpu_s();

}  // namespace cleave::inline runtime
