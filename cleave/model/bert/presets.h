#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cleave/text/json.h"

namespace cleave {

/// config.json of a BERT of published sizes for a vocabulary (a masked LM), or of the notebook's
/// classifier; nothing for another name.
std::optional<Json> bert_preset(const std::string& name, int64_t vocab_size);
[[nodiscard]] std::vector<std::string> bert_preset_names();

}  // namespace cleave
