#pragma once
#include <cstdint>
#include <vector>

namespace cleave {

/// One place in the sequence that a model gets: a special token, the first text or the second.
struct TemplateStep {
  enum class What : uint8_t { kToken, kFirst, kSecond };
  What what = What::kFirst;
  int64_t id = 0;       ///< of the token
  int64_t type_id = 0;  ///< token type (segment) of what stands here
};

/// What surrounds one text, and a pair of texts.
struct SequenceTemplate {
  std::vector<TemplateStep> single{{TemplateStep::What::kFirst, 0, 0}};
  std::vector<TemplateStep> pair{{TemplateStep::What::kFirst, 0, 0},
                                 {TemplateStep::What::kSecond, 0, 1}};
};

}  // namespace cleave
