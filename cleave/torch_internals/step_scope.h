#pragma once
#include <cstdint>
#include <string_view>

#include "cleave/runtime/step_recorder.h"

namespace cleave::inline torch_internals {

/// A layer's forward: an event, if this thread has a StepRecorder, and the layer of the graph nodes
/// that are made meanwhile.
class LayerScope {
 public:
  explicit LayerScope(std::string_view path);
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  StepRecorder* recorder_;
};

/// While it is alive, this thread's StepRecorder gets the backward of every graph node that runs on
/// this thread, with the layer that made the node. Costs about a microsecond per node.
class BackwardRecorder {
 public:
  BackwardRecorder();
  ~BackwardRecorder();
  BackwardRecorder(const BackwardRecorder&) = delete;
  BackwardRecorder& operator=(const BackwardRecorder&) = delete;

 private:
  uint64_t handle_;
};

}  // namespace cleave::inline torch_internals
