#include "cleave/cli/prompts.h"

#include <array>
#include <iostream>
#include <iterator>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/cli/check.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/file/file.h"
#include "cleave/text/jsonl.h"
#include "cleave/text/utf8.h"

namespace cleave::cli {
namespace {

constexpr uint64_t kMostBytes = uint64_t{64} << 20;

void add_json_prompt(const Json& row, GenerateOptions* options) {
  for (const char* key : {"prompt", "text"}) {
    if (row.is(Json::Type::kObject) && row.has(key)) {
      options->prompts.push_back(row.at(key).as_string());
      return;
    }
  }
  if (!row.is(Json::Type::kObject) || !row.has("input_ids")) {
    row.fail("expected an object with \"prompt\", \"text\" or \"input_ids\"");
  }
  const Json ids = row.at("input_ids");
  auto& prompt = options->prompt_ids.emplace_back();
  for (size_t i = 0; i < ids.size(); ++i) prompt.push_back(ids.at(i).as_int(0));
  if (prompt.empty()) ids.fail("expected at least one id");
}

std::string read_prompts(const std::string& path) {
  require_file("--prompt-file", path);
  return read_file(path, kMostBytes);
}

/// Only rank 0 of a launcher has the terminal or pipe.
std::string read_stdin() {
  CLEAVE_CHECK(!read_environment(), Code::kUsage,
               "--prompt-file - reads stdin, which the ranks of a launcher do not share; give a "
               "file");
  announce_stdin();
  std::string text;
  std::array<char, 1 << 16> block{};
  while (std::cin.read(block.data(), std::ssize(block)) || std::cin.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(std::cin.gcount()));
    CLEAVE_CHECK(text.size() <= kMostBytes, Code::kFormat, "stdin has more than ", kMostBytes >> 20,
                 " MiB of prompts");
  }
  return text;
}

}  // namespace

void read_prompt_file(GenerateOptions* options) {
  const bool is_stdin = options->prompt_file == "-";
  const std::string path = is_stdin ? "stdin" : options->prompt_file;
  const std::string text = is_stdin ? read_stdin() : read_prompts(path);
  require_utf8_file(path, text);
  const bool is_jsonl = path.ends_with(".jsonl");
  std::string_view rest = text;
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  for (int line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view prompt = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (prompt.ends_with('\r')) prompt.remove_suffix(1);
    // Blanks alone may be a prompt, but are no JSON.
    if (prompt.find_first_not_of(is_jsonl ? " \t\r" : "") == std::string_view::npos) continue;
    if (is_jsonl) {
      const auto parse = [&] { return Json::parse(prompt, str(path, ':', line)); };
      add_json_prompt(parsed_as(JsonLines::kObjects, parse), options);
    } else {
      CLEAVE_CHECK(first_bad_utf8(prompt) == prompt.size(), Code::kFormat, path, ':', line,
                   ": the prompt is not UTF-8 text; convert the file, for instance with iconv -f "
                   "LATIN1 -t UTF-8");
      options->prompts.emplace_back(prompt);
    }
  }
  CLEAVE_CHECK(options->prompts.empty() || options->prompt_ids.empty(), Code::kFormat, path,
               ": has texts and token ids; put them in two files");
  CLEAVE_CHECK(!options->prompts.empty() || !options->prompt_ids.empty(), Code::kFormat, path,
               ": holds no prompt; expected one per line");
}

}  // namespace cleave::cli
