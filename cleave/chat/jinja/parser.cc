#include <algorithm>
#include <array>
#include <unordered_map>

#include "cleave/chat/jinja/expression_parser.h"
#include "cleave/chat/jinja/syntax.h"

namespace cleave::inline chat::jinja {
namespace {

using Type = Token::Type;
using Kind = Stmt::Kind;

/// Limit of nested blocks. It bounds the recursion of parsing and running.
constexpr int kMaxBlocks = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(tokenize(text)), expressions_(tokens_) {}

  Syntax run() {
    Syntax out;
    out.body = body({});
    out.has_generation = has_generation_;
    out.names = expressions_.take_names();
    return out;
  }

 private:
  TokenCursor& cursor() { return tokens_; }

  /// Statements up to a block that begins with one of `ends`, whose name is consumed; without ends
  /// up to the end of the template.
  Body body(const std::vector<std::string_view>& ends) {
    if (++depth_ > kMaxBlocks) cursor().refuse(str("more than ", kMaxBlocks, " nested blocks"));
    Body out;
    while (true) {
      const Token& token = cursor().peek();
      const int line = token.line;
      if (token.type == Type::kEnd) {
        if (!ends.empty()) cursor().refuse(str("a block has no {% ", ends.back(), " %}"));
        break;
      }
      if (token.type == Type::kData) {
        out.push_back({.kind = Kind::kText, .line = line, .text = cursor().next().text});
      } else if (token.type == Type::kPrintBegin) {
        cursor().next();
        out.push_back({.kind = Kind::kPrint, .line = line, .expr = expressions_.tuple()});
        cursor().expect(Type::kPrintEnd, "}}");
      } else {
        cursor().next();  // {%
        const std::string name = cursor().name("the name of a block");
        end_ = name;
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) break;
        out.push_back(statement(name));
        out.back().line = line;
      }
    }
    --depth_;
    return out;
  }

  void end_block() { cursor().expect(Type::kBlockEnd, "%}"); }

  /// The statements of a block up to {% end %}, with both ends of its tags.
  Body block(std::string_view end) {
    end_block();
    Body out = body({end});
    end_block();
    return out;
  }

  Stmt statement(const std::string& name) {
    if (name == "if") return if_block();
    if (name == "for") return for_block();
    if (name == "set") return set();
    if (name == "macro") return macro();
    if (name == "call") return call_block();
    if (name == "filter") return filter_block();
    if (name == "with") return with_block();
    if (name == "generation") {
      has_generation_ = true;
      return {.kind = Kind::kGeneration, .body = block("endgeneration")};
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) cursor().refuse(str("{% ", name, " %} is outside of a loop"));
      end_block();
      return {.kind = name == "break" ? Kind::kBreak : Kind::kContinue};
    }
    cursor().refuse(str("the block {% ", name,
                        " %} is unknown; expected if, for, set, macro, call, filter, with, "
                        "generation, raw, break or continue"));
  }

  Stmt if_block() {
    Stmt out{.kind = Kind::kIf, .expr = expressions_.tuple(/*with_condition=*/false)};
    end_block();
    out.body = body({"elif", "else", "endif"});
    if (end_ == "elif") {
      const int line = cursor().peek().line;
      if (++depth_ > kMaxBlocks) cursor().refuse("too many {% elif %}");
      out.other.push_back(if_block());
      --depth_;
      out.other.back().line = line;
      return out;
    }
    end_block();
    if (end_ == "else") {
      out.other = body({"endif"});
      end_block();
    }
    return out;
  }

  Target target() {
    Target out = one_target(/*takes_attribute=*/false);
    if (!cursor().is(",")) return out;
    Target all;
    all.parts.push_back(std::move(out));
    while (cursor().take(",")) {
      if (cursor().peek().type != Type::kName && !cursor().is("(")) break;
      all.parts.push_back(one_target(false));
    }
    return all;
  }

  Target one_target(bool takes_attribute) {
    if (cursor().take("(")) {
      if (++depth_ > kMaxBlocks) cursor().refuse("too many brackets");
      Target inner = target();
      --depth_;
      cursor().expect_operator(")");
      return inner;
    }
    Target out;
    out.text = cursor().name("a name to assign to");
    out.name = expressions_.number_of(out.text);
    if (takes_attribute && cursor().take(".")) out.attribute = cursor().name("an attribute");
    return out;
  }

  Stmt for_block() {
    Stmt out{.kind = Kind::kFor, .target = target()};
    if (!cursor().take_name("in")) cursor().refuse("expected 'in' after the names of a loop");
    out.expr = expressions_.tuple(/*with_condition=*/false);
    if (cursor().take_name("if")) out.condition = expressions_.whole();
    out.is_recursive = cursor().take_name("recursive");
    end_block();
    ++loops_;
    out.body = body({"else", "endfor"});
    --loops_;
    end_block();
    if (end_ == "else") {
      out.other = body({"endfor"});
      end_block();
    }
    return out;
  }

  Stmt set() {
    Target to = one_target(/*takes_attribute=*/true);
    if (cursor().is(",")) {
      Target all;
      all.parts.push_back(std::move(to));
      while (cursor().take(",")) all.parts.push_back(one_target(true));
      to = std::move(all);
    }
    if (cursor().take("=")) {
      Stmt out{.kind = Kind::kSet, .expr = expressions_.tuple(), .target = std::move(to)};
      end_block();
      return out;
    }
    Stmt out{.kind = Kind::kSetBlock, .target = std::move(to)};
    if (cursor().is("|")) out.expr = expressions_.filters(nullptr);
    out.body = block("endset");
    return out;
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> out;
    cursor().expect_operator("(");
    while (!cursor().take(")")) {
      if (!out.empty()) cursor().expect_operator(",");
      Parameter one;
      one.text = cursor().name("a parameter");
      one.name = expressions_.number_of(one.text);
      if (cursor().take("=")) one.fallback = expressions_.whole();
      out.push_back(std::move(one));
    }
    return out;
  }

  /// The body of a macro. It cannot break out of a loop that surrounds the macro.
  Body macro_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body out = block(end);
    loops_ = loops;
    return out;
  }

  Stmt macro() {
    Stmt out{.kind = Kind::kMacro, .text = cursor().name("the name of a macro")};
    out.name = expressions_.number_of(out.text);
    out.parameters = parameters();
    out.body = macro_body("endmacro");
    return out;
  }

  Stmt call_block() {
    Stmt out{.kind = Kind::kCall};
    if (cursor().is("(")) out.parameters = parameters();
    out.expr = expressions_.whole();
    if (out.expr->kind != Expr::Kind::kCall) cursor().refuse("{% call %} expects a call");
    out.name = expressions_.number_of("caller");
    out.body = macro_body("endcall");
    return out;
  }

  Stmt filter_block() {
    Stmt out{.kind = Kind::kFilter};
    out.expr = expressions_.filters(nullptr, /*starts_inside=*/true);
    out.body = block("endfilter");
    return out;
  }

  Stmt with_block() {
    Stmt out{.kind = Kind::kWith};
    while (cursor().peek().type != Type::kBlockEnd) {
      if (!out.assignments.empty()) cursor().expect_operator(",");
      Target to = one_target(false);
      cursor().expect_operator("=");
      out.assignments.emplace_back(std::move(to), expressions_.whole());
    }
    out.body = block("endwith");
    return out;
  }

  TokenCursor tokens_;
  ExpressionParser expressions_;
  std::string end_;  // name of the block that ended body()
  int depth_ = 0, loops_ = 0;
  bool has_generation_ = false;
};

}  // namespace

Syntax parse(std::string_view text) {
  return Parser(text).run();
}

}  // namespace cleave::inline chat::jinja
