#pragma once
#include <utility>

#include <c10/util/SmallVector.h>

#include "cleave/layout/placements_seen.h"

namespace cleave::inline nn {

class Layer;
class Parameter;

/// Records which replicated parameters one call of a layer uses on this thread. Whether their
/// gradients are partial sums follows from the layout of the activation they are used on: the one
/// that the layer reported (Parameter::used_in), otherwise all activations of the call, which must
/// then agree. Also counts the calls of other layers.
class CallRecord : public PlacementsSeen {
 public:
  /// Innermost call on this thread; null outside any.
  [[nodiscard]] static CallRecord* current() {
    return static_cast<CallRecord*>(PlacementsSeen::current());  // nothing else derives from it
  }

  void note_read(const Parameter& p) { read_.push_back(&p); }          ///< by use()
  void note_reported(const Parameter& p) { reported_.push_back(&p); }  ///< by used_in()

  /// Counts a call of `layer`; returns the number of those before it.
  size_t count_call(const Layer& layer);

  /// Called at the end of the call of the layer at `path`. Throws Error(kShape), naming parameter,
  /// layer and remedy, when the layouts do not agree and the use of a parameter was not reported.
  void finish(const std::string& path) const;

 private:
  c10::SmallVector<const Parameter*, 4> read_, reported_;
  c10::SmallVector<std::pair<const Layer*, size_t>, 8> calls_;
};

}  // namespace cleave::inline nn
