#pragma once
#include "cleave/generate/scores.h"
#include "cleave/layout/split.h"

namespace cleave::test {

/// A rank's shard of whole scores [R, V], as from a model that is sharded over `axis`.
inline Scores shard_of(const Tensor& whole, const Axis& axis) {
  const Range held = Split::balanced(whole.size(1), axis.size())->ranges(axis.rank()).front();
  return {.values = whole.narrow(1, held.begin, held.size()).clone(),
          .held = held,
          .vocab_size = whole.size(1),
          .axis = axis};
}

}  // namespace cleave::test
