#include "cleave/tokenizer/tokenizer.h"

#include <algorithm>

namespace cleave {

std::vector<int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int64_t> ids = encode_text(text, options.parse_special);
  if (!options.add_special || template_.single.size() == 1) return ids;
  std::vector<int64_t> out;
  out.reserve(ids.size() + template_.single.size());
  for (const TemplateStep& step : template_.single) {
    if (step.what == TemplateStep::What::kToken) {
      out.push_back(step.id);
    } else {
      out.insert(out.end(), ids.begin(), ids.end());
    }
  }
  return out;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special) const {
  if (!skip_special) return decode_ids(ids);
  std::vector<int64_t> kept;
  kept.reserve(ids.size());
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(kept),
               [this](int64_t id) { return !is_special(id); });
  return decode_ids(kept);
}

}  // namespace cleave
