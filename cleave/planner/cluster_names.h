#pragma once
#include <string_view>

namespace cleave::inline planner {

/// What --cluster takes besides a file: "here" and cluster_names(), which the front end cannot
/// call.
inline constexpr std::string_view kClusterNames =
    "here a100-80gb h100-80gb h200 b200 mi300x gb200 gb300 selene jean-zay a100-hdr a100-40gb "
    "dgx-h100 h100-96gb a64fx tpu-v4";

}  // namespace cleave::inline planner
