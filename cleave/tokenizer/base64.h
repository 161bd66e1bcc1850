#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace cleave {

/// The bytes of padded base64 text (RFC 4648); nothing when it is not valid.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace cleave
