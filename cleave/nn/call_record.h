#pragma once
#include <c10/util/SmallVector.h>

#include "cleave/layout/layouts_seen.h"

namespace cleave {

class Parameter;

/// What one call of a layer does, on this thread, with parameters that all ranks of an axis hold
/// whole. Whether their gradients are partial sums follows from the layout of what they are used
/// on: of the activation that the layer reported (Parameter::used_in), else of all that the call
/// has had, where these agree.
class CallRecord : public LayoutsSeen {
 public:
  /// Of the innermost call on this thread; null outside all.
  [[nodiscard]] static CallRecord* current() {
    return static_cast<CallRecord*>(LayoutsSeen::current());  // nothing else derives from it
  }

  void note_read(const Parameter& p) { read_.push_back(&p); }          ///< by use()
  void note_reported(const Parameter& p) { reported_.push_back(&p); }  ///< by used_in()

  /// At the end of the call of the layer at `path`. Throws Error(kShape), naming parameter, layer
  /// and remedy, for a parameter whose use was not reported when the layouts do not agree.
  void finish(const std::string& path) const;

 private:
  c10::SmallVector<const Parameter*, 4> read_, reported_;
};

}  // namespace cleave
