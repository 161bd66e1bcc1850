#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cleave {

/// Bytes from a text as Hugging Face's tools write it: "5GB" is 5 * 10^9, "5GiB" 5 * 2^30, "1000"
/// or "1000B" a thousand; K, M, G and T in either case. Nothing for any other text, for 0, and for
/// more than 64 bits hold.
std::optional<uint64_t> bytes_from_text(std::string_view text);

/// "512 bytes", "1.5 MiB", "123 GiB".
std::string bytes_text(double bytes);

}  // namespace cleave
