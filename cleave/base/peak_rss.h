#pragma once
#include <cstdint>

namespace cleave {

/// Most memory that this process ever held, in bytes.
int64_t peak_rss_bytes();

}  // namespace cleave
