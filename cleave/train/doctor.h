#pragma once
#include <string>
#include <utility>
#include <vector>

namespace cleave {

/// Names and values, in the order they are shown.
using Facts = std::vector<std::pair<std::string, std::string>>;

}  // namespace cleave

/// Appends what only the library knows about this machine: libtorch's version, the chosen library
/// for matrix products, the transports beyond shared memory, CUDA. The front end finds it in
/// libcleave by this name.
extern "C" void cleave_doctor(cleave::Facts& facts);
