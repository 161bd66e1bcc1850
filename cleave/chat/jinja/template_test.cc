#include "cleave/chat/jinja/template.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/text/utf8.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/python.h"
#include "tests/support/thrown.h"

// Oracle: transformers' renderings, in tests/golden/chat/templates.json.
namespace cleave::jinja {
namespace {

using testing::HasSubstr;

constexpr std::time_t kNow = 1772712000;  // noon of March 5, 2026 (UTC), as in make_templates.py

Rendered render(const std::string& text, const RenderOptions& options = {}) {
  return Template(text, "t").render({}, options);
}

std::string error_of(const std::string& text, const RenderOptions& options = {}) {
  const Error error = test::thrown_by([&] { (void)render(text, options); });
  EXPECT_EQ(error.code(), Code::kFormat) << text;
  return error.what();
}

/// Number of characters in the first `bytes` bytes.
int64_t characters_before(const std::string& text, size_t bytes) {
  int64_t count = 0;
  for (size_t at = 0; at < bytes; at += next_code_point(text, at).bytes) ++count;
  return count;
}

/// Compares a row of make_templates.py with what the template prints.
void expect_equal(const Json& row) {
  const std::string subject = row.at("name").as_string() + ": " + row.at("template").as_string();
  const std::vector<std::pair<std::string, Value>> variables{
      {"messages", Value::from_json(row.at("messages"))},
      {"tools", Value(nullptr)},
      {"documents", Value(nullptr)},
      {"add_generation_prompt", Value(row.at("add_generation_prompt").as_bool())},
      {"bos_token", Value::text("<s>")},
      {"eos_token", Value::text("</s>")}};
  const auto rendered = [&] {
    return Template(row.at("template").as_string(), "t").render(variables, {.now = kNow});
  };
  if (row.has("error")) {
    EXPECT_EQ(test::thrown_by(rendered).code(), Code::kFormat) << subject;
    return;
  }
  const Rendered got = rendered();
  EXPECT_EQ(got.text, row.at("text").as_string()) << subject;
  const Json spans = row.at("generated");
  ASSERT_EQ(got.generated.size(), spans.size()) << subject;
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(characters_before(got.text, got.generated[i].begin),
              spans.at(i).at(size_t{0}).as_int());
    EXPECT_EQ(characters_before(got.text, got.generated[i].end),
              spans.at(i).at(size_t{1}).as_int());
  }
}

TEST(ChatTemplates, Constructs_PrintAsInTransformers) {
  ::setenv("TZ", "UTC", 1);  // NOLINT(concurrency-mt-unsafe)
  const Json rows = Json::parse_file(test::source_file("tests/golden/chat/templates.json"));
  ASSERT_GT(rows.size(), 100U);
  for (size_t i = 0; i < rows.size(); ++i) expect_equal(rows.at(i));
}

// CLEAVE_CHAT_TEMPLATES names a folder with files *.jinja of published models.
TEST(ChatTemplates, TemplatesOfAFolder_PrintAsInTransformers) {
  const char* folder = std::getenv("CLEAVE_CHAT_TEMPLATES");  // NOLINT(concurrency-mt-unsafe)
  const char* python = std::getenv("CLEAVE_PYTHON");          // NOLINT(concurrency-mt-unsafe)
  if (folder == nullptr || python == nullptr) {
    GTEST_SKIP() << "CLEAVE_CHAT_TEMPLATES (a folder with *.jinja) and CLEAVE_PYTHON are not set";
  }
  ::setenv("TZ", "UTC", 1);  // NOLINT(concurrency-mt-unsafe)
  const test::RunResult result = test::run_program(
      {"/usr/bin/env", python, test::source_file("tests/golden/chat/make_templates.py"), "--folder",
       folder});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json rows = Json::parse(result.out, "make_templates.py");
  ASSERT_GT(rows.size(), 0U) << "CLEAVE_CHAT_TEMPLATES=" << folder << " has no files *.jinja";
  for (size_t i = 0; i < rows.size(); ++i) expect_equal(rows.at(i));
}

TEST(ChatTemplates, Errors_NameSourceAndLine) {
  EXPECT_THAT(error_of("a\n{% if 1 %}\n"), HasSubstr("t: line 2: a block has no {% endif %}"));
  EXPECT_THAT(error_of("\n\n{{ x.y }}"), HasSubstr("t: line 3: 'x' is undefined"));
  EXPECT_THAT(error_of("{% for i in [1] %}\n{{ raise_exception('no') }}{% endfor %}"),
              HasSubstr("t: line 2: the template refuses the messages: no"));
  EXPECT_THAT(error_of("{% include 'a' %}"), HasSubstr("{% include %} is unknown"));
  EXPECT_THAT(error_of("{{ [1].append(2) }}"), HasSubstr("no attribute 'append'"));
  // Jinja: "No test named 'x.y'." and "No filter named 'x.y'."
  EXPECT_THAT(error_of("\n{{ 1 is x.y }}"), HasSubstr("t: line 2: there is no test 'x.y'"));
  EXPECT_THAT(error_of("\n{{ 1 | x.y }}"), HasSubstr("t: line 2: there is no filter 'x.y'"));
}

TEST(ChatTemplates, HostileTemplates_HitALimit) {
  const RenderOptions few{.max_steps = 100'000, .max_bytes = 1'000'000};
  EXPECT_THAT(error_of("{% for i in range(10 ** 9) %}{% endfor %}", few),
              HasSubstr("too much memory"));
  EXPECT_THAT(error_of("{% for i in range(999) %}{% for j in 'a' * 999 %}{% endfor %}{% endfor %}",
                       {.max_steps = 100'000}),
              HasSubstr("too many steps"));
  EXPECT_THAT(error_of("{% set a = 'a' * 10 ** 7 %}{{ (a ~ a).count(a ~ 'b') }}"),
              HasSubstr("too many steps"));
  EXPECT_THAT(error_of("{{ 'a' * 10 ** 12 }}"), HasSubstr("too much memory"));
  EXPECT_THAT(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("too many nested calls"));
  EXPECT_THAT(error_of("{{ " + std::string(999, '(') + "1" + std::string(999, ')') + " }}"),
              HasSubstr("too many levels"));
  std::string deep = "{{ 1";
  for (int i = 0; i < 999; ++i) deep += " + 1";
  EXPECT_THAT(error_of(deep + " }}"), HasSubstr("too many operations"));
  EXPECT_THAT(error_of("{% set n = namespace(x=[]) %}{% for i in range(999) %}"
                       "{% set n.x = [n.x, n.x] %}{% endfor %}"),
              HasSubstr("more than 100 levels"));
  // 2^40 elements by 40 references: printing them is what costs.
  EXPECT_THAT(error_of("{% set n = namespace(x=[]) %}{% for i in range(40) %}"
                       "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
                       {.max_steps = 100'000}),
              HasSubstr("too many steps"));
  EXPECT_THAT(error_of("{{ 9223372036854775807 + 1 }}"), HasSubstr("more than 64 bits"));
}

TEST(ChatTemplates, CopiesAndComparisons_CountAgainstTheLimits) {
  const RenderOptions little{.max_bytes = 1'000'000};
  const RenderOptions few{.max_steps = 100'000};
  // 50 copies of 1000 values of 16 bytes or more.
  EXPECT_THAT(
      error_of("{% set l = range(1000) %}{% for i in range(50) %}{% set x = 'a'.upper(*l) %}"
               "{% endfor %}",
               little),
      HasSubstr("too much memory"));
  EXPECT_THAT(error_of("{% set a = 'a' * 10 ** 5 %}"
                       "{{ range(20) | tojson(separators=(a, a)) | length }}",
                       little),
              HasSubstr("too much memory"));
  // 2000 times 10^6 bytes.
  const std::string two = "{% set a = 'a' * 10 ** 6 %}{% set b = 'a' * 10 ** 6 %}";
  const std::string often = "{% for i in range(2000) %}";
  for (const char* what : {"a == b", "a < b", "a is eq b", "a is lower", "{a: 1}[b]"}) {
    EXPECT_THAT(error_of(two + often + "{% set x = " + what + " %}{% endfor %}", few),
                HasSubstr("too many steps"))
        << what;
  }
  std::string maps = "{{ 'a' | map(";
  for (int i = 0; i < 900; ++i) maps += "'map', ";
  EXPECT_THAT(error_of(maps + "'upper') }}"), HasSubstr("too many nested calls"));
  EXPECT_EQ(render("{{ 'aXbX'.count('X') ~ 'aaaaa'.count('aa') ~ 'a'.count('b') }}").text, "220");
}

// Oracle: Python, whose integers have any number of digits.
TEST(ChatTemplates, IntegersOfMoreThan64Bits_KeepTheirDigits) {
  const Json json =
      Json::parse(R"({"a": [18446744073709551615, -9223372036854775809, 1e30]})", "j");
  const auto printed = [&](const std::string& text) {
    return Template("{{ " + text + " }}", "t").render({{"x", Value::from_json(json)}}, {}).text;
  };
  EXPECT_EQ(printed("x | tojson"), R"({"a": [18446744073709551615, -9223372036854775809, 1e+30]})");
  EXPECT_EQ(printed("x.a"), "[18446744073709551615, -9223372036854775809, 1e+30]");
  EXPECT_EQ(printed("(x.a[0] | int) ~ ' ' ~ (x.a[0] | float)"),
            "18446744073709551615 1.8446744073709552e+19");
  EXPECT_EQ(printed("[x.a[0] is number, x.a[0] is integer, x.a[0] is float, x.a[0] == x.a[0]]"),
            "[True, True, False, True]");
  EXPECT_EQ(printed("[x.a[0] == x.a[1], x.a[0] == 1, 1 if x.a[0] else 2]"), "[False, False, 1]");
  EXPECT_EQ(test::thrown_by([&] { (void)printed("x.a[0] + 1"); }).code(), Code::kFormat);
}

// Oracle: the text is UTF-8 and ends with the message's beginning.
TEST(ChatTemplates, LongNamesInMessages_AreCutBetweenCharacters) {
  std::string name = "a";
  for (int i = 0; i < 500; ++i) name += "\xC3\xA9";
  const std::string message = error_of("{{ {}['" + name + "'].b }}");
  EXPECT_THAT(message, HasSubstr("has no attribute 'a\xC3\xA9"));
  EXPECT_LT(message.size(), 200U);
  for (size_t at = 0; at < message.size();) {
    const CodePoint c = next_code_point(message, at);
    EXPECT_TRUE(c.valid) << at;
    at += c.bytes;
  }
}

}  // namespace
}  // namespace cleave::jinja
