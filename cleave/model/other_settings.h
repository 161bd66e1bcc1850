#pragma once
#include <string_view>
#include <vector>

#include "cleave/text/json.h"

namespace cleave::inline model {

/// Throws Error(kFormat) naming the key if a config.json has a setting of other families whose
/// value changes what a model computes, or quantised weights. `own_keys`: those that the
/// family reads itself.
void refuse_other_settings(const Json& json, const std::vector<std::string_view>& own_keys = {});

/// Throws Error(kFormat) if the key has a value other than false, 0, null and an empty list or
/// object, naming it: the family has no such part.
void refuse_setting(const Json& json, std::string_view key);

/// Throws Error(kFormat) if a causal model's config.json lets tokens attend to later ones:
/// transformers reads is_causal = null, 0 and false so.
void refuse_later_tokens(const Json& json);

}  // namespace cleave::inline model
