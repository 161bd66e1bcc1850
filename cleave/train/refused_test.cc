// The table of refused combinations in docs/layouts.md has the messages of the program: this test
// runs each combination and compares. To update the page, paste the table that the failure prints.
#include <fstream>

#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace cleave::refused_test {
namespace {

using Words = std::vector<std::string>;

const char* const kConfig = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
"hidden_size":24,"intermediate_size":20,"num_hidden_layers":4,"num_attention_heads":6,
"num_key_value_heads":2,"head_dim":4,"max_position_embeddings":32})";

/// Flags in addition to --model (4 blocks, 6 heads, 32 positions), --data, --out and
/// --batch-size 4.
const std::vector<std::string> kRefused = {
    "--dp 2 --zero 1 --fsdp",
    "--pp 2 --virtual-pipeline 2 --schedule-pp 1f1b",
    "--virtual-pipeline 2 --schedule-pp 1f1b",
    "--tp 7",
    "--pp 5",
    "--pp 2 --virtual-pipeline 3",
    "--dp 5",
    "--dp 2 --micro-batch-size 3",
    "--tp 2 --plan plan.json --sequence-parallel",
    "--async-save",
    "--eval-every 1",
    "--early-stop 2",
    "--steps 2 --epochs 1",
    "--steps 2 --warmup 3",
    "--steps 4 --warmup 2 --schedule wsd --decay-steps 3",
    "--decay-steps 3",
    "--min-lr 1e-5 --schedule constant",
    "--min-lr 1",
    "--seq-len 33",
    "--task classify --data rows.jsonl",
    "--task mlm",
};

Words words_of(const std::string& text) {
  Words words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// "| flags | exit code | message |".
std::string table_row(const std::string& flags, const test::TempFolder& folder) {
  const std::string data =
      flags.find("--data") == std::string::npos ? std::string(folder / "text.txt") : "";
  Words words{"train", "--model", folder / "sizes.json", "--out", folder / "run"};
  if (!data.empty()) words.insert(words.end(), {"--data", data});
  if (flags.find("--seq-len") == std::string::npos) words.insert(words.end(), {"--seq-len", "16"});
  words.insert(words.end(), {"--batch-size", "4"});
  for (const std::string& word : words_of(flags)) {
    const bool is_file = word.ends_with(".json") || word.ends_with(".jsonl");
    words.push_back(is_file ? std::string(folder / word) : word);
  }
  const test::RunResult ran = test::run_cleave(words, {.deadline_s = 60});
  std::string message = ran.err;
  const std::string start = "cleave: ";
  const size_t at = message.rfind(start);
  EXPECT_NE(at, std::string::npos) << flags << ": " << ran.exit_code << ran.err << ran.out;
  if (at != std::string::npos) message = message.substr(at + start.size());
  while (message.ends_with('\n')) message.pop_back();
  message = replaced(replaced(message, folder / "", ""), "|", "\\|");
  return str("| `", flags, "` | ", ran.exit_code, " | ", message, " |\n");
}

TEST(Refused, TableInDocs_HasTheMessagesOfTheProgram) {
  const test::TempFolder folder;
  std::ofstream(folder / "sizes.json") << kConfig;
  std::ofstream(folder / "text.txt") << std::string(2000, 'a');
  std::ofstream(folder / "plan.json") << R"({"lm_head": {"style": "colwise"}})";
  std::ofstream(folder / "rows.jsonl") << R"({"input_ids": [1, 2, 3], "label": "x"})" << '\n';
  std::string table = "| flags | exit code | message |\n|---|---|---|\n";
  for (const std::string& flags : kRefused) table += table_row(flags, folder);
  const std::string page = test::internal::text_of(test::source_file("docs/layouts.md"));
  EXPECT_NE(page.find("\n\n" + table + "\n"), std::string::npos)
      << "docs/layouts.md should have\n\n"
      << table;
}

}  // namespace
}  // namespace cleave::refused_test
