// What the program prints before it loads libcleave: help, and refusals.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/report/record.h"
#include "tests/e2e/fake_program.h"
#include "tests/support/level.h"
#include "tests/support/paths.h"

namespace cleave::test {
namespace {

using Words = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A folder with a data file, a model folder and a run.
class Usage : public testing::Test {
 protected:
  Usage() {
    std::filesystem::create_directories(folder_ / "model");
    std::filesystem::create_directories(folder_ / "run/step_00000002");
    write("data.txt", "text");
  }

  [[nodiscard]] std::string in(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(in(name)).parent_path());
    std::ofstream(in(name)) << text;
  }

  // Expects a refusal with one line on stderr and nothing on stdout.
  void expect_refused(Words words, int exit_code, const std::string& message) {
    for (std::string& word : words) {
      if (word.starts_with("@")) word = in(word.substr(1));
    }
    std::string wanted = message;
    for (size_t at = wanted.find('@'); at != std::string::npos; at = wanted.find('@')) {
      wanted.replace(at, 1, in(""));
    }
    const RunResult ran = run_fake(words);
    EXPECT_EQ(ran.err, "cleave: " + wanted + "\n");
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(ran.exit_code, exit_code);
  }

  TempFolder folder_;
};

TEST_F(Usage, Help_NamesEveryCommandInATenthOfASecond) {
  double fastest = 1e9;
  RunResult ran;
  for (int i = 0; i < 5; ++i) {
    ran = run_cleave({"--help"});
    fastest = std::min(fastest, ran.seconds);
  }
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.err, "");
  for (const char* command : {"train", "generate", "eval", "launch", "tokenize", "inspect",
                              "report", "doctor", "lesson", "completion"}) {
    EXPECT_TRUE(contains(ran.out, std::string("\n  ") + command + ' ')) << command;
  }
  if (!kIsInstrumented) {
    EXPECT_LT(fastest, 0.1);
  }
}

TEST_F(Usage, HelpOfACommand_ShowsFlagsWithDefaults) {
  const RunResult ran = run_cleave({"train", "--help"});
  EXPECT_EQ(ran.exit_code, 0);
  for (const char* part : {"--tp N", "--lr RATE", "[0.0003]", "--no-shuffle", "[1000]",
                           "--dtype fp32|bf16|fp16|fp64", "--save-every STEPS"}) {
    EXPECT_TRUE(contains(ran.out, part)) << part;
  }
  EXPECT_FALSE(contains(ran.out, "--no-resume"));
}

TEST_F(Usage, Help_FitsIntoTheTerminal) {
  const std::vector<std::pair<std::string, size_t>> cases{{"", 80},          {"COLUMNS=40", 40},
                                                          {"COLUMNS=7", 40}, {"COLUMNS=100", 100},
                                                          {"COLUMNS=x", 80}, {"COLUMNS=0", 80}};
  for (const auto& [variable, width] : cases) {
    RunWith with;
    if (!variable.empty()) with.environment = {variable};
    std::istringstream lines(run_program({test::program(), "train", "--help"}, with).out);
    size_t longest = 0;
    for (std::string line; std::getline(lines, line);) {
      // A single word may be longer.
      const size_t begin = std::min(line.find_first_not_of(' '), line.size());
      const bool is_word = line.find(' ', begin) == std::string::npos;
      if (line.size() <= width || !is_word) longest = std::max(longest, line.size());
    }
    EXPECT_LE(longest, width) << variable;
    EXPECT_GT(longest, width - 20) << variable;
  }
  const RunWith narrow{.environment = {"COLUMNS=40"}};
  EXPECT_TRUE(run_program({test::program(), "--help"}, narrow)
                  .out.starts_with("Trains and runs transformers on parallel\nranks.\n\nusage"));
}

TEST_F(Usage, Version_IsOneLine) {
  for (const char* word : {"--version", "version", "-v", "-V"}) {
    const RunResult ran = run_cleave({word});
    EXPECT_EQ(ran.out.substr(0, 7), "cleave ") << word;
    EXPECT_EQ(ran.out.find('\n'), ran.out.size() - 1) << word;
    EXPECT_EQ(ran.exit_code, 0) << word;
  }
}

TEST_F(Usage, UnknownWords_NameTheNearest) {
  expect_refused({}, 2, "no command given; see cleave --help");
  expect_refused({"trian"}, 2, "unknown command 'trian'; did you mean train");
  expect_refused({"nope"}, 2, "unknown command 'nope'; see cleave --help");
  expect_refused({"chat", "--model", "x"}, 2,
                 "unknown command 'chat'; did you mean generate --chat");
  expect_refused({"finetune"}, 2, "unknown command 'finetune'; did you mean train");
  expect_refused({"versoin"}, 2, "unknown command 'versoin'; did you mean version");
  expect_refused({"evaluate"}, 2, "unknown command 'evaluate'; did you mean eval");
  expect_refused({"train", "--qqqqqqqq", "5"}, 2,
                 "unknown flag --qqqqqqqq; see cleave train --help");
  expect_refused({"trian", "--help"}, 2, "unknown command 'trian'; did you mean train");
  expect_refused({"--verbose"}, 2, "unknown flag --verbose before the command; see cleave --help");
  expect_refused({"--train", "@data.txt"}, 2, "unknown flag --train; did you mean train");
  // Nothing before the command is ignored.
  expect_refused({"--tp", "2", "train", "--data", "@data.txt", "--out", "@new"}, 2,
                 "unknown flag --tp before the command; see cleave --help");
  expect_refused({"hello", "train", "--data", "@data.txt", "--out", "@new"}, 2,
                 "unknown command 'hello'; see cleave --help");
  expect_refused({"trian", "bench", "train"}, 2, "unknown command 'trian'; did you mean train");
  expect_refused({"train", "--stepz", "5"}, 2, "unknown flag --stepz; did you mean --steps");
  expect_refused(
      {"train", "--json"}, 2,
      "unknown flag --json; metrics.jsonl in --out has a line for each step; leave it out");
  expect_refused({"train", "--bach-size=5"}, 2,
                 "unknown flag --bach-size; did you mean --batch-size");
  expect_refused({"tokenize", "hello"}, 2, "unexpected word 'hello'; did you mean --text 'hello'");
  expect_refused({"tokenize", "--model", "@model"}, 2,
                 "unknown flag --model; did you mean --tokenizer");
  expect_refused({"convert", "@model", "@new"}, 2,
                 "unexpected word '@new'; did you mean --to '@new'");
  expect_refused({"convert", "@model", "--to", "@new.gguf", "--format", "oslo"}, 2,
                 "--to is @new.gguf, the name of a GGUF file, and --format is oslo; give another "
                 "name, or omit --format");
  expect_refused({"generate", "@model", "The rain"}, 2,
                 "unexpected word 'The rain'; did you mean --prompt 'The rain'");
  expect_refused({"train", "@data.txt", "--out", "@new"}, 2,
                 "--data FILES is missing; did you mean --data @data.txt");
  expect_refused({"train", "@model", "--out", "@new"}, 2,
                 "--data FILES is missing; see cleave train --help");
  expect_refused({"help", "trian"}, 2, "unknown command 'trian'; did you mean train");
}

// Oracle: --help.
TEST_F(Usage, HelpAsACommand_PrintsTheHelpOfACommand) {
  for (const Words& command : {Words{}, Words{"train"}, Words{"launch"}, Words{"bench", "train"}}) {
    Words flag = command;
    flag.emplace_back("--help");
    Words word = command;
    word.insert(word.begin(), "help");
    const RunResult ran = run_cleave(word);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.out, run_cleave(flag).out);
  }
}

TEST_F(Usage, PresetWithoutWeights_IsRefusedWithTheCommandThatTrainsIt) {
  expect_refused({"generate", "--model", "llama-tiny", "--prompt", "a"}, 5,
                 "--model llama-tiny: no such folder; a preset has no weights: train it with "
                 "cleave train --model NAME --out DIR, then give DIR");
}

TEST_F(Usage, EmptyValues_AreRefusedWithWhatToGiveOrToLeaveOut) {
  expect_refused({"train", "--data", "@data.txt", "--out", ""}, 2, "--out is empty; expected DIR");
  expect_refused({"train", "--out", "@new", "--data", ""}, 2, "--data is empty; expected FILES");
  expect_refused({"train", "--out", "@new", "--data", "@data.txt", ""}, 2,
                 "--data is empty; expected FILES");
  expect_refused({"generate", "--prompt", "a", "--model", ""}, 2, "--model is empty; expected DIR");
  expect_refused({"convert", "--from", "@model", "--to", ""}, 2, "--to is empty; expected PATH");
  write("empty.json", R"({"data": "x", "out": ""})");
  expect_refused({"train", "--config", "@empty.json"}, 2,
                 "@empty.json: \"out\" is empty; expected DIR");
  for (const char* flag : {"--model", "--tokenizer", "--eval-data", "--lora-targets"}) {
    expect_refused({"train", "--data", "@data.txt", "--out", "@new", flag, ""}, 2,
                   str(flag, " is empty; leave it out instead"));
  }
  expect_refused({"report", ""}, 2, "RUN is empty; see cleave report --help");
  expect_refused({"diff", "@model", ""}, 2, "B is empty; see cleave diff --help");
  EXPECT_EQ(received_options({"generate", "--model", in("model"), "--prompt", ""})["prompts"],
            nlohmann::json({""}))
      << "the empty text is one";
}

TEST_F(Usage, WrongValues_NameFlagValueAndWhatIsAllowed) {
  expect_refused({"train", "--steps", "abc"}, 2,
                 "--steps is 'abc'; expected an integer from 0 to 1000000000");
  expect_refused({"train", "--batch-size", "0"}, 2,
                 "--batch-size is '0'; expected an integer from 1 to 1000000");
  expect_refused({"train", "--batch-size", "9223372036854775808"}, 2,
                 "--batch-size is '9223372036854775808'; expected an integer from 1 to 1000000");
  expect_refused({"train", "--lr", "-1"}, 2, "--lr is '-1'; expected a number from 0 to 1000000");
  expect_refused({"train", "--lr", "nan"}, 2, "--lr is 'nan'; expected a number from 0 to 1000000");
  expect_refused({"train", "--tp=2x"}, 2, "--tp is '2x'; expected an integer from 1 to 4096");
  expect_refused({"train", "--schedule", "cos"}, 2,
                 "--schedule is 'cos'; expected one of cosine, linear, constant, wsd");
  expect_refused({"train", "--adam-betas", "0.9"}, 2,
                 "--adam-betas is '0.9'; expected two numbers, as in 0.9,0.95");
  expect_refused({"train", "--adam-betas", "0.9,1"}, 2,
                 "--adam-betas is '1'; expected a number from 0 and below 1");
  expect_refused({"train", "--timeout", "0"}, 2,
                 "--timeout is '0'; expected a number from 0.001 to 10000000");
  expect_refused({"generate", "--top-p", "1.5"}, 2,
                 "--top-p is '1.5'; expected a number above 0 and up to 1");
  expect_refused({"generate", "--prompt-ids", "1,2,-3"}, 2,
                 "--prompt-ids is '-3'; expected an integer from 0 to 2147483647");
  expect_refused({"train", "--resume=yes"}, 2,
                 "--resume takes no value; got 'yes'; give --resume or --no-resume");
  expect_refused({"train", "--shuffle=off"}, 2,
                 "--shuffle takes no value; got 'off'; give --shuffle or --no-shuffle");
}

TEST_F(Usage, MissingValues_AreNotTakenFromTheNextFlag) {
  expect_refused({"train", "--out"}, 2, "--out has no value");
  expect_refused({"train", "--out", "--tp", "2"}, 2,
                 "--out has no value: the flag --tp follows it; give it as --out DIR");
}

TEST_F(Usage, MissingFlags_AreNamed) {
  expect_refused({"train"}, 2, "--data FILES is missing; see cleave train --help");
  expect_refused({"train", "--data", "@data.txt"}, 2,
                 "--out DIR is missing; see cleave train --help");
  expect_refused({"generate", "--prompt", "a"}, 2,
                 "--model DIR is missing; see cleave generate --help");
  expect_refused({"generate", "--model", "@model"}, 2,
                 "no prompt; give --prompt TEXT, --prompt-file FILE (- is stdin), --prompt-ids "
                 "1,2,3 or --chat");
  expect_refused({"generate", "--model", "@model", "--prompt-file", "-"}, 4,
                 "stdin: holds no prompt; expected one per line");
  expect_refused({"launch", "--", "ls"}, 2, "-n N is missing; see cleave launch --help");
}

TEST_F(Usage, ResumingWithoutFlags_NamesTheRunsOwnCommand) {
  const std::string command = "cleave train --data 'my text' --out out/run";
  write_record(in("run"), {.title = "m", .settings = {{std::string(kCommandSetting), command}}});
  expect_refused(
      {"train", "--resume", "--out", "@run"}, 2,
      "--data FILES is missing; a resumed run takes its flags again: " + command + " --resume");
  write_record(in("run"),
               {.title = "m", .settings = {{std::string(kCommandSetting), command + " --resume"}}});
  expect_refused(
      {"train", "--resume", "--out", "@run"}, 2,
      "--data FILES is missing; a resumed run takes its flags again: " + command + " --resume");
  expect_refused({"train", "--out", "@run"}, 2, "--data FILES is missing; see cleave train --help");
  expect_refused({"train", "--resume", "--out", "@new"}, 2,
                 "--data FILES is missing; see cleave train --help");
}

TEST_F(Usage, FlagsThatExcludeEachOther_AreRefused) {
  const Words base = {"train", "--data", "@data.txt", "--out", "@new"};
  const auto with = [&](const Words& more) {
    Words words = base;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  expect_refused(with({"--steps", "5", "--epochs", "2"}), 2,
                 "--steps and --epochs exclude each other; give one");
  expect_refused(with({"--resume", "--no-resume"}), 2,
                 "--resume and --no-resume exclude each other; give one");
  expect_refused(with({"--eval-every", "5"}), 2, "--eval-every needs --eval-data");
  expect_refused(with({"--steps", "0", "--eval-data", "@data.txt"}), 2,
                 "--eval-data is evaluated after steps, and --steps is 0; omit it, and measure the "
                 "model with cleave eval");
  expect_refused(
      with({"--async-save"}), 2,
      "--async-save needs --save-every: the last checkpoint is never saved asynchronously");
}

TEST_F(Usage, FlagsOfPlanThatDoNotFit_AreRefused) {
  expect_refused({"plan", "--model", "@model", "--ranks", "8", "--recompute", "full"}, 2,
                 "--ranks and --recompute exclude each other; give one");
  expect_refused(
      {"plan", "--model", "@model", "--cluster", "h200"}, 2,
      "--cluster h200 needs the number of devices; add --ranks N, or --tp, --pp and --dp");
  expect_refused({"plan", "--ranks", "8", "--cluster", "h200", "--schedule-pp", "gpipe"}, 2,
                 "--cluster and --schedule-pp exclude each other; give one");
  expect_refused({"plan", "--model", "@model", "--tokens", "1T"}, 2,
                 "--tokens needs a cluster; add --cluster NAME");
  expect_refused({"plan", "--model", "@model", "--ranks", "5000"}, 2,
                 "--ranks is 5000; at most 4096 without --cluster");
  expect_refused({"plan", "--runs", "@data.txt", "--ranks", "8"}, 2,
                 "--runs and --ranks exclude each other; give one");
  expect_refused({"plan", "--runs", "@data.txt", "--memory", "8GiB"}, 2,
                 "--runs and --memory exclude each other; give one");
  expect_refused({"plan", "--runs", "@data.txt", "--batch-size", "8"}, 2,
                 "--runs and --batch-size exclude each other; give one");
  expect_refused({"plan", "--html", "plan.html"}, 2,
                 "--html writes the page of a cluster's plan; add --cluster NAME");
  expect_refused({"plan", "--ranks", "8", "--cluster", "h200", "--lora-alpha", "2"}, 2,
                 "--cluster and --lora-alpha exclude each other; give one");
  expect_refused({"plan", "--rank", "1"}, 2, "--rank chooses the rank of a dry run; add --dry-run");
  expect_refused({"plan", "--dry-run", "--ranks", "6", "--tp", "4"}, 3,
                 "--ranks 6 is not tp 4 x pp 1 x dp 1; choose sizes with this product");
  expect_refused({"plan", "--dry-run", "--ranks", "4", "--rank", "4"}, 2,
                 "--rank 4 is not among the 4 ranks; choose 0 to 3");
  expect_refused(
      {"plan", "--dry-run", "--dp", "4", "--batch-size", "6"}, 3,
      "--batch-size 6 is not a multiple of dp 4; a dry run needs equal shares of the batch");
  expect_refused({"plan", "--model", "@model", "--dp", "16", "--batch-size", "8"}, 3,
                 "--batch-size is 8, fewer than the 16 data-parallel ranks; give each at least one "
                 "sequence");
  expect_refused({"plan", "--dp", "8", "--batch-size", "8", "--micro-batch-size", "2"}, 3,
                 "--micro-batch-size is 2, more than the 1 sequences of a data-parallel rank "
                 "(--batch-size 8, --dp 8)");
}

TEST_F(Usage, FlagsOfGenerateThatDoNotFit_AreRefused) {
  expect_refused({"generate", "--model", "@model", "--prompt", "a", "--prompt-ids", "1"}, 2,
                 "--prompt and --prompt-ids exclude each other; give one");
  expect_refused({"generate", "--model", "@model", "--prompt-ids", "1", "--chat"}, 2,
                 "--prompt-ids and --chat exclude each other; give one");
  write("latin1.txt", "one\ncaf\xe9\n");
  expect_refused({"generate", "--model", "@model", "--prompt-file", "@latin1.txt"}, 4,
                 "@latin1.txt:2: the prompt is not UTF-8 text; convert the file, for instance with "
                 "iconv -f LATIN1 -t UTF-8");
  write("text.jsonl", "one\n");
  expect_refused({"generate", "--model", "@model", "--prompt-file", "@text.jsonl"}, 4,
                 "@text.jsonl:1: found 'o', expected a value (byte 0); JSONL has one JSON object "
                 "per line");
  write("other.jsonl", "{\"a\": 1}\n");
  expect_refused({"generate", "--model", "@model", "--prompt-file", "@other.jsonl"}, 4,
                 "@other.jsonl:1: the document is {\"a\":1}; expected an object with \"prompt\", "
                 "\"text\" or \"input_ids\" (byte 0)");
  write("ids.jsonl", "{\"input_ids\": [1]}\n");
  expect_refused({"generate", "--model", "@model", "--prompt-file", "@ids.jsonl", "--chat"}, 2,
                 "--chat answers texts; @ids.jsonl has token ids");
  expect_refused({"generate", "--model", "@model", "--chat", "--json"}, 2,
                 "--chat prints text; omit --json");
  expect_refused({"generate", "--model", "@model", "--chat", "--tp", "2"}, 2,
                 "--chat reads messages on one rank; omit --tp 2, or give the messages as "
                 "--prompt or --prompt-file");
  expect_refused({"train", "--data", "@data.txt", "--out", "@out", "--chat-template", "@none"}, 5,
                 "--chat-template @none: No such file or directory");
  const char* const too_many =
      "--num-return-sequences is 2, more than --num-beams 1; raise --num-beams, or give "
      "--do-sample with a --temperature above 0";
  expect_refused({"generate", "--model", "@model", "--prompt", "a", "--num-return-sequences", "2"},
                 2, too_many);
  expect_refused({"generate", "--model", "@model", "--prompt", "a", "--num-return-sequences", "2",
                  "--do-sample", "--temperature", "0"},
                 2, too_many);
}

TEST_F(Usage, SizesThatDoNotFit_AreShapeErrors) {
  expect_refused({"train", "--data", "@data.txt", "--out", "@new", "--dp", "9"}, 3,
                 "--batch-size is 8, fewer than the 9 data-parallel ranks; give each at least one "
                 "sequence");
  expect_refused(
      {"train", "--data", "@data.txt", "--out", "@new", "--dp", "3", "--micro-batch-size", "4"}, 3,
      "--micro-batch-size is 4, more than the 3 sequences of a data-parallel rank "
      "(--batch-size 8, --dp 3)");
}

TEST_F(Usage, MissingFiles_AreIoErrors) {
  expect_refused({"train", "--data", "@data.txt", "@nope.txt", "--out", "@new"}, 5,
                 "--data @nope.txt: No such file or directory");
  expect_refused({"train", "--data", "@data.txt", "--out", "@new", "--eval-data", "@data.txt:0.5"},
                 5,
                 "--eval-data @data.txt:0.5: no such file; only --data of train takes weights, as "
                 "in FILE:0.5");
  expect_refused(
      {"train", "--data", "@data.txt", "--out", "@new", "--chat-template", "llama3"}, 5,
      "--chat-template llama3: no such file; expected chatml, or a file with a template");
  expect_refused({"train", "--data", "@model", "--out", "@new"}, 5,
                 "--data @model: is a folder; expected a file");
  expect_refused({"train", "--data", "-", "--out", "@new"}, 2,
                 "--data - would be stdin, which this flag does not read; write it into a file");
  expect_refused({"train", "--data", "@data.txt", "--out", "@data.txt"}, 5,
                 "--out @data.txt: is a file; expected a folder");
  expect_refused({"train", "--data", "@data.txt", "--out", "@new", "--model", "./nope"}, 5,
                 "--model ./nope: no such folder");
  expect_refused({"train", "--data", "@data.txt", "--out", "@new", "--model", "@data.txt"}, 5,
                 "--model @data.txt: is a file; expected a model or run folder, a GGUF file, a "
                 "config.json with sizes, or the name of a preset");
  expect_refused({"generate", "--model", "@data.txt", "--prompt", "x"}, 5,
                 "--model @data.txt: is a file; expected a model or run folder, or a GGUF file");
  expect_refused({"train", "--data", "@data.txt", "--out", "@new", "--tokenizer", "@nope"}, 5,
                 "--tokenizer @nope: no such folder; expected bytes, a folder with tokenizer "
                 "files, a GGUF file or ORG/NAME of the Hugging Face cache");
  expect_refused({"train", "--data", "@data.txt", "--out", "@new", "--tokenizer", "@data.txt"}, 5,
                 "--tokenizer @data.txt: is a file; give the folder that holds it, or a GGUF file");
  expect_refused({"train", "--config", "@nope.json"}, 5,
                 "--config @nope.json: No such file or directory");
  expect_refused({"train", "--data", "https://localhost/a.txt", "--out", "@new"}, 5,
                 "--data https://localhost/a.txt: is a URL; download it, and give the file");
  expect_refused({"train", "--data", "@data.txt,b.txt", "--out", "@new"}, 5,
                 "--data @data.txt,b.txt: no such file; separate files by spaces");
  expect_refused({"train", "--data", "@data.txt:1,b.txt:2", "--out", "@new"}, 5,
                 "--data @data.txt:1,b.txt: no such file; separate files by spaces");
}

TEST_F(Usage, MissingAdaptersAndReferences_AreNamedWithTheirFlag) {
  const std::string adapters = "; expected a PEFT folder, or the --out folder of a run with --lora";
  for (const Words& command : {Words{"generate", "--prompt", "x"},
                               {"eval", "--data", "@data.txt"},
                               {"predict", "--text", "x"},
                               {"convert", "--to", "@new"}}) {
    for (const auto& [adapter, problem] :
         {std::pair{"@nope", ": no such folder"}, {"@data.txt", ": is a file"}}) {
      Words words = command;
      const char* model = command.front() == "convert" ? "--from" : "--model";
      words.insert(words.end(), {model, "@model", "--adapter", adapter});
      expect_refused(words, 5, str("--adapter ", adapter, problem, adapters));
    }
  }
  expect_refused(
      {"eval", "--model", "@model", "--data", "@data.txt", "--task", "dpo", "--reference", "@nope"},
      5, "--reference @nope: no such folder");
  expect_refused({"plan", "--model", "nope.json"}, 5,
                 "--model nope.json: No such file or directory");
  expect_refused({"train", "--data", "@data.txt", "--out", "@data.txt/runs/new"}, 5,
                 "--out @data.txt/runs/new: @data.txt is a file, and no folder can be in it; "
                 "choose another folder");
}

// As in --out=~/run, where the shell leaves the ~ as it is: a folder of that name would be made.
TEST_F(Usage, HomeFolderThatNoShellReplaced_IsRefused) {
  const std::string advice = ": the shell did not replace ~; give the whole path, or use $HOME";
  expect_refused({"train", "--data", "@data.txt", "--out=~/run"}, 2,
                 "--out ~/run" + advice + "/run");
  expect_refused({"train", "--data=~/a.txt", "--out", "@new"}, 2,
                 "--data ~/a.txt" + advice + "/a.txt");
  expect_refused({"generate", "--model=~/run", "--prompt", "x"}, 2,
                 "--model ~/run" + advice + "/run");
}

TEST_F(Usage, FolderThatHoldsARun_IsOnlyTakenToResume) {
  const std::string data = in("data.txt");
  expect_refused({"train", "--data", data, "--out", "@run"}, 2,
                 "--out @run already holds a run (step_00000002); resume it with --resume or "
                 "choose another folder");
  write("run/latest", "step_00000002");
  expect_refused({"train", "--data", data, "--out", "@run"}, 2,
                 "--out @run already holds a run (step_00000002); resume it with --resume or "
                 "choose another folder");
  // As links to the checkpoint's files, or copies of them.
  write("run/step_00000002/manifest.json", "");
  write("run/config.json", "{}");
  write("run/model.safetensors", "");
  EXPECT_EQ(run_fake({"train", "--data", data, "--out", in("run"), "--resume"}).exit_code, 0);
  EXPECT_EQ(run_fake({"train", "--data", data, "--out", in("model")}).exit_code, 0);
  // The checkpoints were deleted: the links lead nowhere.
  std::filesystem::create_directories(folder_ / "emptied");
  write("emptied/latest", "step_00000002");
  std::filesystem::create_symlink("step_00000002/model.safetensors",
                                  folder_ / "emptied/model.safetensors");
  expect_refused({"train", "--data", data, "--out", "@emptied"}, 2,
                 "--out @emptied already holds a run (latest); resume it with --resume or choose "
                 "another folder");
}

TEST_F(Usage, FolderOfACheckpointOrAModel_IsNoRun) {
  write("own/model.safetensors", "");
  write("own/optimizer.safetensors", "");
  write("bin/pytorch_model-00001-of-00002.bin", "");
  write("trained/model.safetensors", "");
  write("trained/step_500/model.safetensors", "");  // of another program
  write("begun/latest", "step_00000002");
  write("begun/step_00000002/model.safetensors", "");
  for (const Words& more : {Words{}, Words{"--resume"}}) {
    const auto expect = [&](const std::string& out, const std::string& message) {
      Words words{"train", "--data", in("data.txt"), "--out", out};
      words.insert(words.end(), more.begin(), more.end());
      expect_refused(words, 2, message);
    };
    expect("@own",
           "--out @own is the folder of a model (model.safetensors), not of a run; choose another "
           "folder");
    expect("@bin",
           "--out @bin is the folder of a model (pytorch_model-00001-of-00002.bin), not of a run; "
           "choose another folder");
    expect("@trained",
           "--out @trained is the folder of a model (model.safetensors), not of a run; choose "
           "another folder");
    expect("@begun/step_00000002/",
           "--out @begun/step_00000002/ is a checkpoint of the run @begun; give the run's folder");
  }
}

// A run in the wrong folder would start from the beginning there. A new folder, what a scheduler
// writes into it and what a killed run left are no reason to refuse.
TEST_F(Usage, FolderOfSomethingElse_IsNotResumed) {
  write("notes/.hidden", "");
  write("notes/cleave-7.log", "");
  std::filesystem::create_directories(folder_ / "notes/lost+found");
  const Words words{"train", "--data", in("data.txt"), "--resume", "--out", in("notes")};
  EXPECT_EQ(run_fake(words).exit_code, 0);
  write("notes/b.txt", "");
  write("notes/a.txt", "");
  expect_refused(words, 2,
                 "--resume: @notes is not the folder of a run (it holds a.txt); give the run's "
                 "folder, or leave out --resume to start a run there");
  // Other ranks leave the check to rank 0, which may be writing there already.
  EXPECT_EQ(run_fake(words, {.environment = {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1",
                                             "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                             "MASTER_PORT=29500"}})
                .exit_code,
            0);
  write("notes/metrics.jsonl", "");
  EXPECT_EQ(run_fake(words).exit_code, 0);
  EXPECT_EQ(run_fake({"train", "--data", in("data.txt"), "--resume", "--out", in("new")}).exit_code,
            0);
  // What a run leaves that fails before its first step.
  write("failed/flight_log.1700000000000.rank1.json", "{}");
  EXPECT_EQ(
      run_fake({"train", "--data", in("data.txt"), "--resume", "--out", in("failed")}).exit_code,
      0);
}

// What a run leaves that is killed before its first checkpoint is complete.
TEST_F(Usage, FolderWithoutACheckpoint_IsTakenAgain) {
  std::filesystem::create_directories(folder_ / "killed/step_00000002.partial");
  write("killed/metrics.jsonl", "{\"step\":1}\n");
  const Words words{"train", "--data", in("data.txt"), "--out", in("killed")};
  EXPECT_EQ(run_fake(words).exit_code, 0);
  std::filesystem::create_directories(folder_ / "killed/step_00000002.damaged");
  expect_refused(words, 2,
                 "--out @killed already holds a run (step_00000002.damaged); resume it with "
                 "--resume or choose another folder");
}

TEST_F(Usage, ConfigFiles_AreCheckedAsFlagsAre) {
  const auto expect_refused_config = [&](const std::string& text, int code,
                                         const std::string& message) {
    write("c.json", text);
    expect_refused({"train", "--config", "@c.json"}, code, "@c.json: " + message);
  };
  expect_refused_config(R"({"batchsize": 4})", 2,
                        "unknown key \"batchsize\"; did you mean \"batch-size\"");
  expect_refused_config(R"({"no-steps": true})", 2,
                        "unknown key \"no-steps\"; did you mean \"steps\"");
  expect_refused_config(R"({"config": "x"})", 2,
                        "unknown key \"config\"; see cleave train --help for the keys");
  expect_refused_config(R"({"zzzz_zzzzzz": 1})", 2,
                        "unknown key \"zzzz_zzzzzz\"; see cleave train --help for the keys");
  expect_refused_config(R"({"batch_size": 0})", 2,
                        "\"batch_size\" is '0'; expected an integer from 1 to 1000000");
  expect_refused_config(R"({"batch_size": 1, "batch-size": 2})", 2,
                        "\"batch-size\" is given twice");
  expect_refused_config(R"({"resume": 1})", 4, "\"resume\" is 1; expected true or false (byte 11)");
  expect_refused_config(R"({"tp": {}})", 4, "\"tp\" is {}; expected a number or a string (byte 7)");
  expect_refused_config("steps 3", 4,
                        "found 's', expected a value (byte 0); a config file is a JSON object of "
                        "flags");
  expect_refused_config(R"([1])", 4, "the document is [1]; expected an object of flags (byte 0)");
}

TEST_F(Usage, WithoutTheLibrary_SaysWhereItLooked) {
  const std::string copy = in("cleave");
  std::filesystem::copy_file(test::program(), copy);
  const RunResult ran =
      run_program({copy, "eval", "--model", in("model"), "--data", in("data.txt")});
  EXPECT_EQ(ran.exit_code, 5);
  EXPECT_TRUE(contains(ran.err, "there is no " + in("libcleave.so"))) << ran.err;
  EXPECT_TRUE(contains(ran.err, "; run ./run build in a clone, or install Cleave again"))
      << ran.err;
  write("libcleave.so", "not a library");
  const RunResult broken =
      run_program({copy, "eval", "--model", in("model"), "--data", in("data.txt")});
  EXPECT_EQ(broken.exit_code, 5);
  EXPECT_TRUE(contains(broken.err, in("libcleave.so") + " cannot be loaded: ")) << broken.err;
  EXPECT_TRUE(contains(broken.err, "; run ./run build in a clone, or install Cleave again"))
      << broken.err;
}

}  // namespace
}  // namespace cleave::test
