#include "cleave/comm/launch/host_share.h"

#include <array>
#include <charconv>

#include "cleave/base/error.h"

namespace cleave::inline comm {

std::string text_of(const HostShare& share) {
  return str(share.first_rank, ',', share.world_size, ',', share.host, ',', share.master_port, ',',
             share.master_addr);
}

std::optional<HostShare> read_host_share(const GetVariable& get) {
  const char* const value = get(kHostShareVariable);
  const std::string text = value == nullptr ? "" : value;
  if (text.empty()) return std::nullopt;
  HostShare share;
  const std::array numbers{&share.first_rank, &share.world_size, &share.host, &share.master_port};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int* number : numbers) {
    const auto [after, error] = std::from_chars(at, end, *number);
    CLEAVE_CHECK(error == std::errc() && after != end && *after == ',', Code::kUsage,
                 kHostShareVariable, "='", text, "'; cleave launch --hosts sets it, unset it");
    at = after + 1;
  }
  share.master_addr.assign(at, end);
  return share;
}

}  // namespace cleave::inline comm
