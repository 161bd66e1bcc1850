#pragma once
#include <cstdint>
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::test {

/// The attention window of each layer; 0: none.
inline std::vector<int64_t> windows_of(const DecoderConfig& c) {
  std::vector<int64_t> out;
  for (const DecoderLayer& layer : c.layers) out.push_back(layer.window);
  return out;
}

}  // namespace cleave::test
