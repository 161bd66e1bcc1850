// Training, evaluating and generating on chats with the whole program.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/terminal_program.h"
#include "tests/support/train_program.h"

namespace cleave::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

struct Turn {
  std::string question, answer;
};

const std::vector<std::vector<Turn>> kChats{
    {{"a", "bc"}}, {{"de", "f"}, {"g", "hij"}}, {{"k", "l"}}, {{"mn", "op"}, {"q", "r"}}};

/// The chats as messages, and as ids with labels: the ChatML text is written here a second time.
void write_chats(const std::string& messages_path, const std::string& ids_path) {
  std::ofstream messages_file(messages_path);
  std::ofstream ids_file(ids_path);
  for (const auto& chat : kChats) {
    json messages = json::array();
    json ids = json::array();
    json labels = json::array();
    const auto add = [&](const std::string& text, bool is_trained) {
      for (const char c : text) {
        ids.push_back(static_cast<int>(c));
        labels.push_back(is_trained ? static_cast<int>(c) : -100);
      }
    };
    for (const auto& [question, answer] : chat) {
      messages.push_back({{"role", "user"}, {"content", question}});
      messages.push_back({{"role", "assistant"}, {"content", answer}});
      add("<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n", false);
      add(answer + "<|im_end|>\n", true);
    }
    messages_file << json{{"messages", messages}}.dump() << '\n';
    ids_file << json{{"input_ids", ids}, {"labels", labels}}.dump() << '\n';
  }
}

class ChatProgram : public testing::Test {
 protected:
  ChatProgram() { write_chats(in("chats.jsonl"), in("ids.jsonl")); }

  [[nodiscard]] std::string in(const std::string& name) const { return folder_ / name; }

  /// Trains 3 steps on all four chats; returns the losses.
  std::vector<double> losses(const std::string& name, const std::string& data, const Words& more) {
    Words words{"train", "--data",       in(data), "--out",       in(name), "--seq-len",
                "160",   "--batch-size", "4",      "--gemm",      "mkl",    "--threads-per-rank",
                "1",     "--steps",      "3",      "--no-shuffle"};
    if (data == "chats.jsonl") words.insert(words.end(), {"--chat-template", "chatml"});
    words.insert(words.end(), more.begin(), more.end());
    const RunResult ran = run_cleave(words);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    std::vector<double> out;
    for (const json& line : metrics_of(in(name))) {
      if (line.contains("loss")) out.push_back(line["loss"].get<double>());
    }
    EXPECT_EQ(out.size(), 3U);
    return out;
  }

  TempFolder folder_;
};

// Oracle: the same ids and labels as rows of ids; whose losses equal those of transformers.
TEST_F(ChatProgram, Chats_GiveTheLossesOfTheirIdsAndLabels) {
  const std::pair<const char*, const char*> cases[] = {{"llama-tiny", "fp32"},
                                                       {"gpt2-tiny", "bf16"}};
  for (const auto& [model, dtype] : cases) {
    const Words more{"--model", model, "--dtype", dtype, "--tp", "2", "--dp", "2"};
    const std::string name = model;
    EXPECT_EQ(losses(name + "-chats", "chats.jsonl", more),
              losses(name + "-ids", "ids.jsonl", more))
        << name;
  }
}

// Oracle: transformers' loss of the stored model and chats (tests/golden/chat/make_loss.py).
TEST_F(ChatProgram, Loss_EqualsThatOfTransformers) {
  const std::string model = test::source_file("tests/golden/chat/model");
  std::filesystem::copy(model + "/chats.jsonl", in("stored.jsonl"));
  const json want = json::parse(std::ifstream(model + "/loss.json"));
  const RunResult ran = run_cleave(
      {"eval", "--model", model, "--data", in("stored.jsonl"), "--seq-len", "160", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const json got = json::parse(ran.out);
  EXPECT_EQ(got["tokens"], want["tokens"]);
  EXPECT_NEAR(got["loss"].get<double>(), want["loss"].get<double>(), 1e-5);
  for (const char* dtype : {"fp32", "bf16"}) {
    const auto trained = losses(std::string("run-") + dtype, "stored.jsonl",
                                {"--model", model, "--tp", "2", "--dp", "2", "--dtype", dtype});
    // Logits are below 16; a bf16 number of that size is 2^-5 off at most, and the loss is a mean.
    EXPECT_NEAR(trained.front(), want["loss"].get<double>(),
                dtype == std::string("fp32") ? 1e-5 : 2e-2)
        << dtype;
  }
}

// ChatML texts of 64, 129, 63 and 128 bytes fill a sequence of 256 and a half.
// Oracle: one conversation per sequence. With SGD, a difference of the gradients by rounding makes
// one of the same size in the losses, which are below 8.
TEST_F(ChatProgram, PackedChats_GiveTheLossesOfOnePerSequence) {
  std::ofstream(in("gpt2.json")) << json{
      {"model_type", "gpt2"}, {"n_embd", 32},      {"n_layer", 2},      {"n_head", 2},
      {"n_positions", 256},   {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}, {"resid_pdrop", 0.0}};
  for (const std::string& model : {std::string("llama-tiny"), in("gpt2.json")}) {
    const auto trained = [&](const std::string& name, const Words& more) {
      Words words{"train",
                  "--data",
                  in("chats.jsonl"),
                  "--out",
                  in(name),
                  "--model",
                  model,
                  "--chat-template",
                  "chatml",
                  "--gemm",
                  "mkl",
                  "--dp",
                  "2",
                  "--steps",
                  "3",
                  "--schedule",
                  "constant",
                  "--threads-per-rank",
                  "1",
                  "--tp",
                  "2",
                  "--warmup",
                  "0",
                  "--lr",
                  "0.01",
                  "--seq-len",
                  "256",
                  "--optimizer",
                  "sgd",
                  "--eval-data",
                  in("chats.jsonl"),
                  "--no-shuffle"};
      words.insert(words.end(), more.begin(), more.end());
      const RunResult ran = run_cleave(words);
      EXPECT_EQ(ran.exit_code, 0) << ran.err;
      const std::string padding = name.ends_with("packed")
                                      ? "padding at most 25 % of tokens: 4 texts in 2 sequences"
                                      : "padding at most 25.6 % of tokens: 4 texts in 4 sequences";
      EXPECT_NE((ran.out + ran.err).find(padding), std::string::npos) << ran.out << ran.err;
      return metrics_of(in(name));
    };
    const std::string name = model == "llama-tiny" ? "llama" : "gpt2";
    const auto want = trained(name, {"--batch-size", "4"});
    const auto got = trained(name + "-packed", {"--batch-size", "2", "--packing"});
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      for (const char* key : {"loss", "eval_loss"}) {
        if (!want[i].contains(key) || want[i][key].is_null()) continue;
        EXPECT_NEAR(got[i][key].get<double>(), want[i][key].get<double>(), 1e-5) << model << key;
      }
    }
  }
}

// Oracle: the run without interruption. The second sequence of the epoch is the first after it.
TEST_F(ChatProgram, PackedRunThatResumes_ReadsTheSameSequences) {
  const auto trained = [&](const std::string& name, const Words& more) {
    Words words{"train",
                "--data",
                in("chats.jsonl"),
                "--out",
                in(name),
                "--chat-template",
                "chatml",
                "--gemm",
                "mkl",
                "--seq-len",
                "256",
                "--packing",
                "--batch-size",
                "1",
                "--schedule",
                "constant",
                "--warmup",
                "0",
                "--threads-per-rank",
                "1"};
    words.insert(words.end(), more.begin(), more.end());
    const RunResult ran = run_cleave(words);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.err.find("was started"), std::string::npos) << ran.err;
    std::vector<double> losses;
    for (const json& line : metrics_of(in(name))) {
      if (line.contains("loss")) losses.push_back(line["loss"].get<double>());
    }
    return losses;
  };
  const auto want = trained("whole", {"--steps", "4"});
  (void)trained("parts", {"--steps", "1"});
  EXPECT_EQ(trained("parts", {"--steps", "4", "--resume"}), want);
  const RunResult other =
      run_cleave({"train", "--data", in("chats.jsonl"), "--out", in("parts"), "--chat-template",
                  "chatml", "--seq-len", "256", "--batch-size", "1", "--steps", "4", "--resume"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_NE((other.out + other.err).find("was started with --packing"), std::string::npos)
      << other.out << other.err;
}

// Oracle: the first answer continues the ChatML text of the message.
TEST_F(ChatProgram, Chat_AnswersAsTheTextIsContinued) {
  (void)losses("run", "chats.jsonl", {"--model", "llama-tiny"});
  std::string ids;
  for (const char c : std::string("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n")) {
    ids += (ids.empty() ? "" : ",") + std::to_string(static_cast<int>(c));
  }
  const RunResult continued = run_cleave(
      {"generate", "--model", in("run"), "--prompt-ids", ids, "--max-new-tokens", "6", "--json"});
  ASSERT_EQ(continued.exit_code, 0) << continued.err;
  const std::string text = json::parse(continued.out)["sequences"][0]["text"].get<std::string>();
  const RunResult chat =
      run_cleave({"generate", "--model", in("run"), "--chat", "--max-new-tokens", "6"},
                 {.input = "\xEF\xBB\xBF/nothing\na\n/reset\na\n"});  // a byte order mark
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_EQ(chat.out, text + "\n" + text + "\n");
  EXPECT_NE(chat.err.find("there is no command /nothing; expected /reset or /system TEXT; "
                          "Ctrl-D ends the chat\n"),
            std::string::npos)
      << chat.err;
}

// A message and its answer have about 70 bytes: three of them do not fit into 160 positions, and
// every later message drops another two.
TEST_F(ChatProgram, FullConversation_IsReportedOnceAndAgainAfterAReset) {
  std::ofstream(in("gpt2.json")) << json{
      {"model_type", "gpt2"}, {"n_embd", 32}, {"n_layer", 1}, {"n_head", 2}, {"n_positions", 160}};
  (void)losses("run", "chats.jsonl", {"--model", in("gpt2.json")});
  const RunResult chat =
      run_cleave({"generate", "--model", in("run"), "--chat", "--max-new-tokens", "6"},
                 {.input = "a\na\na\na\na\n/reset\na\na\na\na\n"});
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  const std::string line = "warning: the conversation does not fit into the model's 160 positions;";
  const size_t first = chat.err.find(line);
  ASSERT_NE(first, std::string::npos) << chat.err;
  const size_t second = chat.err.find(line, first + 1);
  ASSERT_NE(second, std::string::npos) << chat.err;
  EXPECT_EQ(chat.err.find(line, second + 1), std::string::npos) << chat.err;
}

// Oracle: the same messages on stdin, with a new conversation for each.
TEST_F(ChatProgram, Prompts_AreAnsweredEachInAConversationOfItsOwn) {
  (void)losses("run", "chats.jsonl", {"--model", "llama-tiny"});
  const Words base{"generate", "--model", in("run"), "--chat", "--max-new-tokens", "6"};
  RunWith with;
  with.input = "a\n/reset\nde\n";
  const RunResult want = run_cleave(base, with);
  ASSERT_EQ(want.exit_code, 0) << want.err;
  Words words = base;
  words.insert(words.end(), {"--prompt", "a", "--prompt", "de"});
  const RunResult got = run_cleave(words);
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.out, want.out);
  words.insert(words.end(), {"--tp", "2"});
  const RunResult sharded = run_cleave(words);
  EXPECT_EQ(sharded.exit_code, 0) << sharded.err;
  EXPECT_EQ(sharded.out, want.out);
  EXPECT_EQ(sharded.err, got.err);  // each warning once
}

// Ranks that begin at different times, or in different time zones, read the same date.
TEST_F(ChatProgram, TemplateWithTheTimeOfDay_IsThatOfRank0OnAllRanks) {
  (void)losses("run", "chats.jsonl", {"--model", "llama-tiny"});
  std::ofstream(in("run/chat_template.jinja"))
      << "{{ strftime_now('%d %b %Y %H') }}{% for m in messages %}{{ m['content'] }}{% endfor %}";
  const RunResult ran =
      run_cleave({"launch", "-n", "2", "--", "/bin/bash", "-c", "TZ=TEST$((RANK * 5)) exec \"$@\"",
                  "x", test::program(), "generate", "--model", in("run"), "--chat", "--prompt", "a",
                  "--tp", "2", "--max-new-tokens", "2"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
}

TEST_F(ChatProgram, CtrlCAtThePrompt_ShowsItAgainAndCtrlDEnds) {
  (void)losses("run", "chats.jsonl", {"--model", "llama-tiny"});
  TerminalProgram chat(
      {test::program(), "generate", "--model", in("run"), "--chat", "--max-new-tokens", "2"});
  EXPECT_NE(chat.read_until("> ").find("Ctrl-D ends the chat."), std::string::npos);
  chat.type("dropped\x03");
  EXPECT_NE(chat.read_until("\n> ").find("\nCtrl-D ends the chat\r\n> "), std::string::npos);
  chat.type("a\n");
  const std::string answer = chat.read_until("\n> ");
  EXPECT_TRUE(answer.ends_with("\n> ")) << answer;
  chat.type("\x04");
  (void)chat.read_until("the end of the program");
  EXPECT_EQ(chat.wait(), 0);
}

// As in a model folder whose added tokens were never trained.
TEST_F(ChatProgram, TokenThatTheModelLacks_DoesNotEndAChatInATerminal) {
  (void)losses("run", "chats.jsonl", {"--model", "llama-tiny"});
  const std::string path = in("run/step_00000003/tokenizer.json");
  json tokenizer = json::parse(std::ifstream(path));
  tokenizer["added_tokens"].push_back({{"id", 257}, {"content", "zzz"}, {"special", false}});
  std::filesystem::remove(path);
  std::ofstream(path) << tokenizer;
  TerminalProgram chat({test::program(), "generate", "--model", in("run/step_00000003"), "--chat",
                        "--max-new-tokens", "2"});
  (void)chat.read_until("> ");
  chat.type("a zzz\n");
  const std::string refusal = chat.read_until("\n> ");
  EXPECT_NE(refusal.find("has id 257; the model's ids are 0 to 256; leave this one out"),
            std::string::npos)
      << refusal;
  chat.type("a\n");
  EXPECT_TRUE(chat.read_until("\n> ").ends_with("\n> "));
  chat.type("\x04");
  (void)chat.read_until("the end of the program");
  EXPECT_EQ(chat.wait(), 0);
}

// Oracle: the evaluation of the run, whose weights and template the file has.
TEST_F(ChatProgram, GgufFileAndTokenizerOfARun_KeepTheTemplate) {
  (void)losses("run", "chats.jsonl", {"--model", "llama-tiny"});
  const RunResult converted = run_cleave({"convert", "--from", in("run"), "--to", in("m.gguf"),
                                          "--format", "gguf", "--dtype", "fp32"});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  const auto evaluated = [&](const Words& model) {
    Words words{"eval", "--data", in("chats.jsonl"), "--seq-len", "160", "--json"};
    words.insert(words.end(), model.begin(), model.end());
    const RunResult ran = run_cleave(words);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return ran.exit_code == 0 ? json::parse(ran.out)["loss"].get<double>() : NAN;
  };
  const double want = evaluated({"--model", in("run")});
  EXPECT_NEAR(evaluated({"--model", in("m.gguf")}), want, 1e-5);
  EXPECT_EQ(evaluated({"--model", in("run"), "--tokenizer", in("run")}), want);
}

TEST_F(ChatProgram, WeightsWithoutATokenizer_AreRefused) {
  (void)losses("run", "chats.jsonl", {"--model", "llama-tiny"});
  std::filesystem::create_directory(in("weights"));
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy(in("run/step_00000003/") + name, in("weights"));
  }
  const RunResult ran = run_cleave({"eval", "--model", in("weights"), "--data", in("chats.jsonl")});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_NE(ran.err.find("chats.jsonl holds conversations, which need a tokenizer"),
            std::string::npos)
      << ran.err;
}

TEST_F(ChatProgram, ModelsWithoutTemplate_AreRefused) {
  const RunResult ran = run_cleave({"train", "--data", in("chats.jsonl"), "--out", in("out")});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_NE(ran.err.find("chats.jsonl:1: the model has no chat template"), std::string::npos)
      << ran.err;
}

TEST_F(ChatProgram, Tokenize_ShowsTheTrainedTokens) {
  const RunResult ran = run_cleave({"tokenize", "--tokenizer", "bytes", "--chat", in("chats.jsonl"),
                                    "--chat-template", "chatml", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  std::istringstream lines(ran.out);
  std::ifstream wanted(in("ids.jsonl"));
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json got = json::parse(line);
    std::string want_line;
    ASSERT_TRUE(std::getline(wanted, want_line));
    const json want = json::parse(want_line);
    EXPECT_EQ(got["ids"], want["input_ids"]);
    for (size_t i = 0; i < got["ids"].size(); ++i) {
      EXPECT_EQ(got["trained"][i].get<bool>(), want["labels"][i].get<int>() != -100) << i;
    }
  }
  EXPECT_EQ(count, kChats.size());
}

TEST_F(ChatProgram, Tokenize_RefusesRowsThatTrainRefuses) {
  std::ofstream(in("both.jsonl"))
      << R"({"text": "a", "messages": [{"role": "assistant", "content": "a"}]})"
      << "\n";
  const RunResult train = run_cleave(
      {"train", "--data", in("both.jsonl"), "--out", in("out"), "--chat-template", "chatml"});
  const RunResult ran = run_cleave({"tokenize", "--tokenizer", "bytes", "--chat", in("both.jsonl"),
                                    "--chat-template", "chatml"});
  EXPECT_EQ(ran.exit_code, train.exit_code);
  EXPECT_EQ(ran.err, train.err);
  EXPECT_NE(ran.err.find("the first row has \"messages\" and \"text\""), std::string::npos)
      << ran.err;
}

}  // namespace
}  // namespace cleave::test
