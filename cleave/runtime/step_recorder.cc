#include "cleave/runtime/step_recorder.h"

#include <algorithm>
#include <ctime>

#include "cleave/base/clock.h"
#include "cleave/base/error.h"

namespace cleave::inline runtime {
namespace {

thread_local StepRecorder* recorder_of_thread = nullptr;

/// Events in the order of RankRecording::events.
bool comes_before(const StepEvent& a, const StepEvent& b) {
  if (a.track != b.track) return a.track < b.track;
  return a.begin_s < b.begin_s;
}

}  // namespace

double thread_cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void HelperCall::begin() {
  cpu_s_ = thread_cpu_s();
  begin_s_ = monotonic_s();
}

void HelperCall::end() {
  end_s_ = monotonic_s();
  cpu_s_ = thread_cpu_s() - cpu_s_;
  has_ended_.store(true, std::memory_order_release);
}

StepRecorder::StepRecorder(Memory memory) : memory_(std::move(memory)) {
  if (recorder_of_thread != nullptr) CLEAVE_BUG("a second StepRecorder on a thread");
  recorder_of_thread = this;
  began_cpu_s_ = thread_cpu_s();
}

StepRecorder::~StepRecorder() {
  recorder_of_thread = nullptr;
}

StepRecorder* StepRecorder::active() {
  return recorder_of_thread;
}

int StepRecorder::name_index(std::string_view name) {
  const auto found = name_indices_.find(name);
  if (found != name_indices_.end()) return found->second;
  const int index = static_cast<int>(out_.names.size());
  out_.names.emplace_back(name);
  name_indices_.emplace(name, index);
  return index;
}

int StepRecorder::axis_index(const Group& group) {
  const auto [at, is_new] = axis_indices_.emplace(&group, static_cast<int>(out_.axes.size()));
  if (is_new) out_.axes.push_back({.name = group.name(), .ranks = group.ranks()});
  return at->second;
}

/// The index of the call; -1 beyond the limit. Numbers count all calls, so that those of other
/// ranks have the same.
int StepRecorder::note_call(const Group& group, const BegunCall& call) {
  const int axis = axis_index(group);
  // Directions of messages: 2 x peer to it, 2 x peer + 1 from it.
  const int direction = call.peer < 0 ? -1 : 2 * call.peer + (call.op == "send" ? 0 : 1);
  const int64_t number = num_calls_[{axis, direction}]++;
  if (out_.calls.size() >= kMostEvents) return -1;
  out_.calls.push_back({.op = std::string(call.op),
                        .axis = axis,
                        .number = number,
                        .peer = call.peer,
                        .bytes = call.bytes,
                        .sent = call.sent});
  return static_cast<int>(out_.calls.size()) - 1;
}

double StepRecorder::push(EventKind kind, int name, int call) {
  frames_.back().backward = -1;
  if (out_.events.size() >= kMostEvents) {
    ++out_.num_left_out;
    frames_.push_back({});
    return monotonic_s();
  }
  const int event = static_cast<int>(out_.events.size());
  frames_.push_back({.event = event});
  const double cpu_s = thread_cpu_s() - began_cpu_s_;
  const double now = monotonic_s();
  out_.events.push_back({.kind = kind,
                         .name = name,
                         .begin_s = now,
                         .end_s = now,
                         .cpu_begin_s = cpu_s,
                         .call = call});
  return now;
}

void StepRecorder::begin(EventKind kind, std::string_view name) {
  push(kind, name_index(name), -1);
}

double StepRecorder::begin_call(const Group& group, const BegunCall& call) {
  const int index = note_call(group, call);
  return push(EventKind::kCollective, name_index(call.site), index);
}

double StepRecorder::begin_wait(const HelperCall& helper) {
  return push(EventKind::kWait, helper.name_, helper.call_);
}

double StepRecorder::end() {
  const int index = frames_.back().event;
  frames_.pop_back();
  const double now = monotonic_s();
  if (index >= 0) {
    StepEvent& event = out_.events[static_cast<size_t>(index)];
    event.end_s = now;
    event.cpu_s = thread_cpu_s() - began_cpu_s_ - event.cpu_begin_s;
  }
  sample_memory(now);
  return now;
}

std::shared_ptr<HelperCall> StepRecorder::start_helper(const Group& group, const BegunCall& call) {
  const int index = note_call(group, call);
  auto helper = std::make_shared<HelperCall>(index, name_index(call.site), axis_index(group) + 1);
  if (helpers_.size() < kMostEvents) {
    helpers_.push_back(helper);
  } else {
    ++out_.num_left_out;
  }
  return helper;
}

void StepRecorder::begin_layer(std::string_view path, uint64_t first_node) {
  const int name = name_index(path.empty() ? "the model" : path);
  layers_.push_back(name);
  if (out_.events.size() < kMostEvents) made_by_.emplace_back(first_node, name);
  push(num_nodes_ > 0 ? EventKind::kRecompute : EventKind::kForward, name, -1);
}

void StepRecorder::end_layer(uint64_t next_node) {
  end();
  layers_.pop_back();
  if (out_.events.size() >= kMostEvents) return;
  made_by_.emplace_back(next_node, layers_.empty() ? -1 : layers_.back());
}

void StepRecorder::begin_node(std::string_view name, uint64_t number) {
  ++num_nodes_;
  // The last entry that begins at or before the node.
  const auto after =
      std::upper_bound(made_by_.begin(), made_by_.end(), number,
                       [](uint64_t n, const auto& entry) { return n < entry.first; });
  const int layer = after == made_by_.begin() ? -1 : std::prev(after)->second;
  const int index = layer >= 0 ? layer : name_index(name);
  const int last = frames_.back().backward;
  const bool is_full = out_.events.size() >= kMostEvents;
  if (!is_full && last >= 0 && out_.events[static_cast<size_t>(last)].name == index) {
    frames_.push_back({.event = last});
    return;
  }
  push(EventKind::kBackward, index, -1);
}

void StepRecorder::end_node() {
  --num_nodes_;
  const int event = frames_.back().event;
  end();
  frames_.back().backward = event;
}

void StepRecorder::note_comm_end() {
  out_.comm_end_s = monotonic_s();
}

// Samples take at most a 20th of the time. At the limit the smaller of two neighbours is dropped,
// so that the peak stays, and later ones are half as dense.
void StepRecorder::sample_memory(double now) {
  if (now < next_sample_s_) return;
  const double cpu_s = thread_cpu_s();
  out_.memory.push_back({.at_s = now, .bytes = memory_()});
  if (out_.memory.size() >= kMostSamples) {
    std::vector<MemorySample> kept;
    for (size_t i = 0; i + 1 < out_.memory.size(); i += 2) {
      const MemorySample &a = out_.memory[i], &b = out_.memory[i + 1];
      kept.push_back(a.total() < b.total() ? b : a);
    }
    out_.memory = std::move(kept);
    sample_every_s_ *= 2;
  }
  next_sample_s_ = now + std::max(sample_every_s_, 20 * (thread_cpu_s() - cpu_s));
}

RankRecording StepRecorder::finish(double origin_s) {
  CLEAVE_CHECK(frames_.size() == 1, Code::kUsage,
               "a recording of a step ends inside one of its layers or phases; end it after them");
  for (const auto& helper : helpers_) {
    if (!helper->has_ended_.load(std::memory_order_acquire)) continue;
    out_.events.push_back({.kind = EventKind::kCollective,
                           .name = helper->name_,
                           .track = helper->track_,
                           .begin_s = helper->begin_s_,
                           .end_s = helper->end_s_,
                           .cpu_s = helper->cpu_s_,
                           .call = helper->call_});
  }
  for (StepEvent& event : out_.events) {
    event.begin_s -= origin_s;
    event.end_s -= origin_s;
  }
  for (MemorySample& sample : out_.memory) sample.at_s -= origin_s;
  out_.comm_end_s -= origin_s;
  out_.step_s = monotonic_s() - origin_s;
  std::stable_sort(out_.events.begin(), out_.events.end(), comes_before);
  return std::move(out_);
}

}  // namespace cleave::inline runtime
