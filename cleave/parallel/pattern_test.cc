#include <gtest/gtest.h>

#include "cleave/parallel/plan.h"

namespace cleave::pattern_test {
namespace {

struct Row {
  const char* pattern;
  const char* path;
  bool match;
};

TEST(Pattern, EveryForm_MatchesWhatItSays) {
  const std::vector<Row> rows = {
      {"lm_head", "lm_head", true},
      {"lm_head", "lm_head2", false},
      {"lm_head", "model.lm_head", false},
      {"", "", true},
      {"", "model", false},
      {"layers.*.wq", "layers.0.wq", true},
      {"layers.*.wq", "layers.31.wq", true},
      {"layers.*.wq", "layers.0.attention.wq", false},  // * stays within a token
      {"layers.*.wq", "layers..wq", true},
      {"layers.*", "layers.0", true},
      {"layers.*", "layers.0.wq", false},
      {"*", "model", true},
      {"*", "model.norm", false},
      {"*.norm", "model.norm", true},
      {"layers.1*.wq", "layers.12.wq", true},
      {"layers.1*.wq", "layers.2.wq", false},
      {"*_proj", "down_proj", true},
      {"*o*o*", "foo_bo", true},
      {"{q,k,v}_proj", "k_proj", true},
      {"{q,k,v}_proj", "o_proj", false},
      {"{q,k,v}_proj", "{q,k,v}_proj", false},
      {"a.{b,c.d}.e", "a.c.d.e", true},
      {"a.{b,c.d}.e", "a.c.e", false},
      {"{a,b}.{c,d}", "b.c", true},
      {"{a,b}.{c,d}", "a.b", false},
      {"x{,_y}", "x", true},
      {"x{,_y}", "x_y", true},
      {"{up*,down}.w", "up_proj.w", true},
      {"model.layers.*.self_attn.{q,k,v}_proj", "model.layers.7.self_attn.v_proj", true},
      {"{a", "a", false},  // an open brace matches nothing
  };
  for (const Row& row : rows) {
    EXPECT_EQ(matches(row.pattern, row.path), row.match) << row.pattern << " on " << row.path;
  }
}

TEST(Pattern, AnyOfSeveralPaths_IsEnough) {
  EXPECT_TRUE(matches_any("layers.*.wq", {"model.layers.0.self_attn.q_proj", "layers.0.wq"}));
  EXPECT_FALSE(matches_any("layers.*.wk", {"model.layers.0.self_attn.q_proj", "layers.0.wq"}));
  EXPECT_FALSE(matches_any("*", {}));
}

}  // namespace
}  // namespace cleave::pattern_test
