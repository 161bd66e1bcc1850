#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/chat/jinja/syntax.h"
#include "tests/support/thrown.h"

namespace cleave::jinja {
namespace {

using Strings = std::vector<std::string>;
using Type = Token::Type;

/// The tokens as words, without that of the end; texts that follow each other as one.
Strings words_of(std::string_view text) {
  Strings out;
  bool after_data = false;
  for (const Token& token : tokenize(text)) {
    switch (token.type) {
      case Type::kData:
        if (after_data) {
          out.back() += token.text;
        } else {
          out.push_back("data " + token.text);
        }
        break;
      case Type::kPrintBegin:
        out.emplace_back("{{");
        break;
      case Type::kPrintEnd:
        out.emplace_back("}}");
        break;
      case Type::kBlockBegin:
        out.emplace_back("{%");
        break;
      case Type::kBlockEnd:
        out.emplace_back("%}");
        break;
      case Type::kName:
        out.push_back("name " + token.text);
        break;
      case Type::kString:
        out.push_back("string " + token.text);
        break;
      case Type::kInt:
        out.push_back("int " + token.text);
        break;
      case Type::kFloat:
        out.push_back("float " + token.text);
        break;
      case Type::kOperator:
        out.push_back(token.text);
        break;
      case Type::kEnd:
        break;
    }
    after_data = token.type == Type::kData;
  }
  return out;
}

void expect_words(const std::vector<std::pair<std::string, Strings>>& cases) {
  for (const auto& [text, words] : cases) EXPECT_EQ(words_of(text), words) << text;
}

// The expected tokens are those of Jinja 3.1.6 with trim_blocks and lstrip_blocks.

TEST(JinjaLexer, WhiteSpaceAroundTags_IsRemovedAsByJinja) {
  expect_words({
      {"", {}},
      {"\n", {}},
      {"plain\n", {"data plain"}},
      {"a{{ x }}b\n\n", {"data a", "{{", "name x", "}}", "data b\n"}},
      {"a\r\nb\rc", {"data a\nb\nc"}},
      {"{{x}}\n{{y}}\n", {"{{", "name x", "}}", "data \n", "{{", "name y", "}}"}},
      {"  {% if x %}\n  a\n  {% endif %}\nb",
       {"{%", "name if", "name x", "%}", "data   a\n", "{%", "name endif", "%}", "data b"}},
      {"a {% if x %} b", {"data a ", "{%", "name if", "name x", "%}", "data  b"}},
      {"a {%- x -%} \n b", {"data a", "{%", "name x", "%}", "data b"}},
      {"a\n  {%+ x +%}\nb", {"data a\n  ", "{%", "name x", "%}", "data \nb"}},
      {"a {{- x -}} b", {"data a", "{{", "name x", "}}", "data b"}},
      {"{ { % # }", {"data { { % # }"}},
  });
}

TEST(JinjaLexer, CommentsAndRawBlocks_AreNoTags) {
  expect_words({
      {"a{# c #}\nb", {"data ab"}},
      {"  {# c #}\nb", {"data b"}},
      {"a {#- c -#} b", {"data ab"}},
      {"{#-#}b", {"data b"}},
      {"{# {{ x }} #}", {}},
      {"{% raw %} {{ x }} {% endraw %}!", {"data  {{ x }} !"}},
      {"{%- raw -%} a {%- endraw -%} b", {"data ab"}},
  });
}

TEST(JinjaLexer, Tags_AreNamesNumbersStringsAndOperators) {
  expect_words({
      {"{{ _x1.b[0] }}", {"{{", "name _x1", ".", "name b", "[", "int 0", "]", "}}"}},
      {"{{ 12 + 1_000 + 1.5 + 2e3 + 1.5E-2 }}",
       {"{{", "int 12", "+", "int 1000", "+", "float 1.5", "+", "float 2e3", "+", "float 1.5E-2",
        "}}"}},
      {"{{ a.0.1 }}", {"{{", "name a", ".", "int 0", ".", "int 1", "}}"}},
      {R"({{ 'a\n\x41\u00e9\101' ~ "it's" }})",
       {"{{", "string a\nA\u00e9A", "~", "string it's", "}}"}},
      {"{{ {'a': '}}'} }}", {"{{", "{", "string a", ":", "string }}", "}", "}}"}},
      {"{{ a//b**c==d!=e>=f<=g }}",
       {"{{", "name a", "//", "name b", "**", "name c", "==", "name d", "!=", "name e",
        ">=", "name f", "<=", "name g", "}}"}},
      {"{{ a<b>c|d~e%f,g }}",
       {"{{", "name a", "<", "name b", ">", "name c", "|", "name d", "~", "name e", "%", "name f",
        ",", "name g", "}}"}},
  });
}

TEST(JinjaLexer, Lines_AreCountedInAndOutsideOfTags) {
  const std::vector<Token> tokens = tokenize("a\n{# b\n #}{{ c\n+ d }}");
  const auto line_of = [&](std::string_view text) {
    return std::find_if(tokens.begin(), tokens.end(),
                        [&](const Token& token) { return token.text == text; })
        ->line;
  };
  EXPECT_EQ(line_of("c"), 3);
  EXPECT_EQ(line_of("+"), 4);
  EXPECT_EQ(line_of("d"), 4);
}

TEST(JinjaLexer, BrokenTags_AreRefusedWithTheirLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\n{{ x", "line 2: a tag has no end; expected }}"},
      {"{% x }}", "line 1: unexpected '}'"},
      {"\n{{ 'a }}", "line 2: a string has no end"},
      {"{# a", "line 1: a comment has no end"},
      {"{% raw %}", "line 1: {% raw %} has no {% endraw %}"},
      {"{{ ) }}", "line 1: unexpected ')'"},
      {"{{ ( }}", "line 1: unexpected '}'"},
      {"\n\n{{ ! }}", "line 3: unexpected character '!'"},
      {R"({{ '\ud800' }})", "line 1: the string has the escape 'd800', which is not a character"},
      {R"({{ '\x4' }})", "which is not a character"}};
  for (const auto& [text, message] : cases) {
    const Error error = test::thrown_by([&, &text = text] { (void)tokenize(text); });
    EXPECT_EQ(error.code(), Code::kFormat) << text;
    EXPECT_THAT(error.what(), testing::HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace cleave::jinja
