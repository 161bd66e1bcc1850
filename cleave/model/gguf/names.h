#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cleave/format/gguf.h"
#include "cleave/text/json.h"

namespace cleave::inline model {

/// A model family in GGUF. Several families may share an architecture, which has the same tensors
/// and the same computation.
struct GgufFamily {
  std::string_view model_type;    ///< in config.json
  std::string_view architecture;  ///< general.architecture
  std::string_view class_name;    ///< in config.json's architectures
  bool is_interleaved = false;    ///< rows of q and k have each rotary pair adjacent, as Meta's
  bool has_experts = false;       ///< a file has the experts of a layer in one tensor
  bool is_gemma = false;          ///< the weights of norms are stored with 1 added
};

/// The family of a config.json. Throws Error(kUsage) if GGUF files of it are not written.
const GgufFamily& gguf_family(const Json& config);
/// The family of a file. Throws Error(kFormat) if its architecture is not supported.
const GgufFamily& gguf_family(const GgufMetadata& metadata);

/// How a GGUF file stores a parameter.
struct GgufName {
  std::string name;
  bool is_interleaved = false;  ///< rows within a head as in StoredAs::interleaved_rows
  bool is_transposed = false;   ///< GPT-2's matrices
  int64_t expert = -1;          ///< which matrix of a tensor [experts, out, in]; -1: all of it
  double added = 0;             ///< the file has the parameter plus this
};

/// The tensor of a parameter (Hugging Face name); nullopt if GGUF has none.
std::optional<GgufName> gguf_name(const GgufFamily& family, std::string_view parameter);
/// The inverse: the parameter of a tensor; nullopt if there is none. Of a tensor with all experts,
/// the parameter of `expert`.
std::optional<std::string> parameter_of_gguf(const GgufFamily& family, std::string_view tensor,
                                             int64_t expert = 0);

/// The tensor with the factors by which llama3's rotary scaling divides the frequencies.
inline constexpr std::string_view kGgufRopeFactors = "rope_freqs.weight";
/// The tensors with the factors of longrope.
inline constexpr std::string_view kGgufShortFactors = "rope_factors_short.weight";
inline constexpr std::string_view kGgufLongFactors = "rope_factors_long.weight";

}  // namespace cleave::inline model
