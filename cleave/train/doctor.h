#pragma once
#include <string>
#include <utility>
#include <vector>

namespace cleave::inline train {

/// Names and values, in display order.
using Facts = std::vector<std::pair<std::string, std::string>>;

}  // namespace cleave::inline train

/// Appends what only the library knows about this machine: libtorch's version and kernels, the
/// chosen library for matrix products, kernel threads, CUDA. The front end finds this symbol in
/// libcleave by name.
extern "C" void cleave_doctor(cleave::Facts& facts);
