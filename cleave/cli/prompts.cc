#include "cleave/cli/prompts.h"

#include <string_view>

#include "cleave/base/error.h"
#include "cleave/cli/check.h"
#include "cleave/file/file.h"
#include "cleave/text/json.h"

namespace cleave::cli {
namespace {

void add_json_prompt(const Json& row, GenerateOptions* options) {
  for (const char* key : {"prompt", "text"}) {
    if (row.is(Json::Type::kObject) && row.has(key)) {
      options->prompts.push_back(row.at(key).as_string());
      return;
    }
  }
  const Json ids = row.at("input_ids");
  auto& prompt = options->prompt_ids.emplace_back();
  for (size_t i = 0; i < ids.size(); ++i) prompt.push_back(ids.at(i).as_int(0));
  if (prompt.empty()) ids.fail("expected at least one id");
}

}  // namespace

void read_prompt_file(GenerateOptions* options) {
  const std::string& path = options->prompt_file;
  require_file("--prompt-file", path);
  const std::string text = read_file(path, uint64_t{64} << 20);
  const bool is_jsonl = path.ends_with(".jsonl");
  std::string_view rest = text;
  for (int line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view prompt = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (prompt.ends_with('\r')) prompt.remove_suffix(1);
    if (prompt.empty()) continue;
    if (is_jsonl) {
      add_json_prompt(Json::parse(prompt, str(path, ':', line)), options);
    } else {
      options->prompts.emplace_back(prompt);
    }
  }
  CLEAVE_CHECK(options->prompts.empty() || options->prompt_ids.empty(), Code::kFormat, path,
               ": has texts and token ids; put them in two files");
  CLEAVE_CHECK(!options->prompts.empty() || !options->prompt_ids.empty(), Code::kFormat, path,
               ": holds no prompt; expected one per line");
}

}  // namespace cleave::cli
