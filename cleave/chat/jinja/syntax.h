#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cleave/chat/jinja/value.h"

namespace cleave::inline chat::jinja {

/// The parts of a tag or of the text between tags.
struct Token {
  enum class Type : uint8_t {
    kData,        ///< text that is printed
    kPrintBegin,  ///< {{
    kPrintEnd,    ///< }}
    kBlockBegin,  ///< {%
    kBlockEnd,    ///< %}
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd,  ///< of the template
  };
  Type type = Type::kEnd;
  std::string text;
  int line = 1;
};

/// Splits a template into tokens. White space is removed as transformers does: trim_blocks and
/// lstrip_blocks are on. Throws Error(kFormat) with "line N: ".
std::vector<Token> tokenize(std::string_view text);

struct Expr;
/// An expression, or null.
using ExprPtr = std::unique_ptr<Expr>;

/// An expression.
struct Expr {
  enum class Kind : uint8_t {
    kConstant,   ///< value
    kName,       ///< name
    kTuple,      ///< children
    kList,       ///< children
    kDict,       ///< children: key, value, key, value, ...
    kAttribute,  ///< children[0].text
    kItem,       ///< children[0][children[1]]
    kSlice,      ///< children[0][children[1]:children[2]:children[3]]; null children are missing
    kCall,       ///< children[0](children[1..], named)
    kFilter,     ///< children[0] | text(children[1..], named); children[0] is null in {% filter %}
    kTest,       ///< children[0] is text(children[1..], named)
    kUnary,      ///< text children[0]
    kBinary,     ///< children[0] text children[1]
    kAnd,
    kOr,
    kCompare,      ///< children[0] operators[0] children[1] operators[1] ...
    kConcatenate,  ///< children joined by ~
    kCondition,    ///< children: value, condition, other value (may be null)
    kSpread,       ///< *children[0] or **children[0] as an argument; text is the operator
  };
  Kind kind = Kind::kConstant;
  int line = 1;
  Value value{};
  std::string text{};
  int name = 0;    ///< number of the name, for kName
  int height = 1;  ///< levels of the tree
  std::vector<ExprPtr> children{};
  std::vector<std::pair<std::string, ExprPtr>> named{};
  std::vector<std::string> operators{};
};

struct Stmt;
/// Statements in order.
using Body = std::vector<Stmt>;

/// A parameter of a macro.
struct Parameter {
  std::string text;
  int name = 0;
  ExprPtr fallback;  ///< may be null
};

/// What a `for` or `set` assigns to.
struct Target {
  int name = -1;                ///< -1: parts
  std::string text{};           ///< spelling of the name
  std::string attribute{};      ///< of a namespace; empty: the name itself
  std::vector<Target> parts{};  ///< of an unpacked sequence
};

/// A statement.
struct Stmt {
  enum class Kind : uint8_t {
    kText,        ///< prints text
    kPrint,       ///< prints expr
    kIf,          ///< expr, body, other
    kFor,         ///< target in expr if condition: body, else other
    kSet,         ///< target = expr
    kSetBlock,    ///< target = the printed body, through the filters of expr
    kMacro,       ///< text(parameters): body
    kCall,        ///< expr, whose caller() is body with parameters
    kFilter,      ///< the printed body through the filters of expr
    kWith,        ///< assignments, body
    kGeneration,  ///< body, written by the assistant
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 1;
  std::string text{};
  int name = 0;
  ExprPtr expr{}, condition{};
  Target target{};
  Body body{}, other{};
  std::vector<Parameter> parameters{};
  std::vector<std::pair<Target, ExprPtr>> assignments{};
  bool is_recursive = false;
};

/// A parsed template.
struct Syntax {
  Body body;
  std::vector<std::string> names;  ///< by number
  bool has_generation = false;     ///< it has a {% generation %} block
};

/// Parses a template. Throws Error(kFormat) with "line N: ".
Syntax parse(std::string_view text);

}  // namespace cleave::inline chat::jinja
