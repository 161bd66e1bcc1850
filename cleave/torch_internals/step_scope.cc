#include "cleave/torch_internals/step_scope.h"

#include <memory>

#include <ATen/record_function.h>

#include "cleave/torch_internals/graph.h"

namespace cleave::inline torch_internals {
namespace {

struct Begun : at::ObserverContext {};

// Nodes that only add to a leaf's gradient have no number.
std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  StepRecorder* const recorder = StepRecorder::active();
  if (recorder == nullptr || function.seqNr() < 0) return nullptr;
  recorder->begin_node(function.name(), static_cast<uint64_t>(function.seqNr()));
  return std::make_unique<Begun>();
}

void end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  if (context != nullptr) StepRecorder::active()->end_node();
}

}  // namespace

LayerScope::LayerScope(std::string_view path) : recorder_(StepRecorder::active()) {
  if (recorder_ != nullptr) recorder_->begin_layer(path, next_node_number());
}

LayerScope::~LayerScope() {
  if (recorder_ != nullptr) recorder_->end_layer(next_node_number());
}

BackwardRecorder::BackwardRecorder()
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {}

BackwardRecorder::~BackwardRecorder() {
  at::removeCallback(handle_);
}

}  // namespace cleave::inline torch_internals
