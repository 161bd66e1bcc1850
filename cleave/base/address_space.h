#pragma once
#include <cstdint>

namespace cleave {

/// Whether the process could still map so many bytes, which a limit on its memory (`ulimit -v`) may
/// forbid. Nothing is taken.
bool has_address_space(int64_t bytes);

}  // namespace cleave
