#pragma once
#include <optional>
#include <string>

#include "cleave/comm/bootstrap/environment.h"

namespace cleave::inline comm {

/// The ranks that one host starts of a job on several hosts. `cleave launch --hosts` starts
/// `cleave launch -n N` on each host with this share in the environment variable
/// kHostShareVariable.
///
/// The stdin of the second process is its connection to the first. Each byte is a signal for the
/// ranks. When stdin ends, the ranks are killed.
struct HostShare {
  int first_rank = 0;
  int world_size = 1;
  int host = 0;             ///< number of this host among those of the job
  int master_port = 0;      ///< where rank 0 waits
  std::string master_addr;  ///< host of rank 0
};

/// The environment variable of a share. Ranks do not get it.
inline constexpr const char* kHostShareVariable = "CLEAVE_HOST_SHARE";

/// "2,6,1,29500,node0"
std::string text_of(const HostShare& share);

/// The share in the environment; nullopt if there is none. Throws Error(kUsage) for any other text.
std::optional<HostShare> read_host_share(const GetVariable& get);

}  // namespace cleave::inline comm
