// The commands that need no libtorch: launch, tokenize, inspect, report, doctor, completion, bench
// collectives.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/fake_program.h"
#include "tests/support/level.h"
#include "tests/support/paths.h"
#include "tests/support/terminal_program.h"
#include "tests/support/torch_files.h"

namespace cleave::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

json parsed(const RunResult& ran) {
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.out.find('\n'), ran.out.size() - 1) << "more than one line";
  return json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
}

void write_safetensors(const std::filesystem::path& path, const std::string& header, size_t bytes) {
  std::ofstream(path, std::ios::binary)
      << number(header.size(), 8) << header << std::string(bytes, '\0');
}

// A folder with a model of two tensors: 6 heads, 2 key/value heads.
void write_model(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"model_type": "llama", "num_attention_heads": 6, "num_key_value_heads": 2})";
  const std::string header = R"({"a.weight":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]},)"
                             R"("b.weight":{"dtype":"BF16","shape":[5],"data_offsets":[48,58]}})";
  write_safetensors(folder / "model.safetensors", header, 58);
}

TEST(Inspect, ModelFolder_ListsTensorsAndSplits) {
  const TempFolder folder;
  write_model(folder / "m");
  const json found = parsed(run_cleave({"inspect", folder / "m", "--json"}));
  EXPECT_EQ(found["kind"], "model folder");
  EXPECT_EQ(found["parameters"], 17);
  EXPECT_EQ(found["bytes"], 58);
  EXPECT_EQ(found["split"],
            json::parse(R"({"max_tp": 6, "even_tp": [1, 2, 3, 6], "heads": 6, "kv_heads": 2})"));
  EXPECT_EQ(found["tensors"][1],
            json::parse(R"({"name": "b.weight", "dtype": "BF16", "shape": [5], "bytes": 10})"));
  EXPECT_EQ(found["config"]["model_type"], "llama");
  const RunResult text = run_cleave({"inspect", folder / "m"});
  EXPECT_TRUE(contains(text.out, "tp 1 to 6 (6 heads), evenly at 1, 2, 3, 6")) << text.out;
  EXPECT_TRUE(contains(text.out, "a.weight  F32   [3, 4]  48 bytes")) << text.out;
}

// A matrix of 4 x 32 weights, with a scale and a minimum for each row, and one of 64 x 2.
TEST(Inspect, MatricesInFourBits_CountTheirWeights) {
  const TempFolder folder;
  const std::string header =
      R"({"a.int4":{"dtype":"U8","shape":[4,16],"data_offsets":[0,64]},)"
      R"("a.int4_scales":{"dtype":"F16","shape":[4,1],"data_offsets":[64,72]},)"
      R"("a.int4_mins":{"dtype":"F16","shape":[4,1],"data_offsets":[72,80]},)"
      R"("b.int4_t":{"dtype":"U8","shape":[2,32],"data_offsets":[80,144]},)"
      R"("b.int4_scales":{"dtype":"F16","shape":[2,2],"data_offsets":[144,152]},)"
      R"("norm":{"dtype":"F32","shape":[5],"data_offsets":[152,172]}})";
  write_safetensors(folder / "m.safetensors", header, 172);
  const json found = parsed(run_cleave({"inspect", folder / "m.safetensors", "--json"}));
  EXPECT_EQ(found["parameters"], 4 * 32 + 64 * 2 + 5);
  EXPECT_EQ(found["bytes"], 172);
}

TEST(Inspect, BinFile_ListsItsTensorsAloneAndInAFolder) {
  const TempFolder folder;
  write_model(folder / "m");
  std::filesystem::remove(folder / "m/model.safetensors");
  const std::string weight = tensor(storage("0", 6), 0, {2, 3}, {3, 1});
  std::ofstream(folder / "m/pytorch_model.bin", std::ios::binary)
      << torch_file(pickle(dict_of("a.weight", weight)), {std::string(24, '\1')});
  const json want =
      json::parse(R"([{"name": "a.weight", "dtype": "F32", "shape": [2, 3], "bytes": 24}])");
  const json file = parsed(run_cleave({"inspect", folder / "m/pytorch_model.bin", "--json"}));
  EXPECT_EQ(file["kind"], "torch file");
  EXPECT_EQ(file["tensors"], want);
  const json model = parsed(run_cleave({"inspect", folder / "m", "--json"}));
  EXPECT_EQ(model["kind"], "model folder");
  EXPECT_EQ(model["tensors"], want);
  EXPECT_EQ(model["split"]["heads"], 6);
  EXPECT_EQ(model["files"], json({"pytorch_model.bin"}));
}

TEST(Inspect, RunFolder_ShowsItsNewestCheckpoint) {
  const TempFolder folder;
  for (const char* name : {"step_00000001", "step_00000002"}) {
    write_model(folder / name);
    std::ofstream(folder / name / "state.json") << "{\"step\": " << name[12] << '}';
  }
  std::ofstream(folder / "latest") << "step_00000002\n";
  const json found = parsed(run_cleave({"inspect", folder.path(), "--json"}));
  EXPECT_EQ(found["kind"], "checkpoint");
  EXPECT_EQ(found["step"], 2);
  EXPECT_EQ(found["run_checkpoints"], json({"step_00000001", "step_00000002"}));
}

TEST(Inspect, LatestThatLeadsOutOfTheRun_IsRefused) {
  const TempFolder folder;
  write_model(folder / "m");
  std::filesystem::create_directories(folder / "run");
  std::ofstream(folder / "run/latest") << "../m\n";
  EXPECT_EQ(run_cleave({"inspect", folder / "run"}).exit_code, 4);
}

TEST(Inspect, TruncatedFile_IsAFormatError) {
  const TempFolder folder;
  write_model(folder / "m");
  std::filesystem::resize_file(folder / "m/model.safetensors", 150);
  EXPECT_EQ(run_cleave({"inspect", folder / "m/model.safetensors"}).exit_code, 4);
}

TEST(Inspect, FileOfAnotherKind_IsNotCalledAHeader) {
  const TempFolder folder;
  const std::string file = folder / "text.txt";
  for (const char* text : {"", "a line", "a line of text\n"}) {
    std::ofstream(file) << text;
    const RunResult ran = run_cleave({"inspect", file});
    EXPECT_EQ(ran.exit_code, 4);
    EXPECT_EQ(ran.err, "cleave: " + file + ": is not a safetensors, .bin or GGUF file\n");
  }
}

TEST(Inspect, VerifyWithoutAManifest_SaysSo) {
  const TempFolder folder;
  write_model(folder / "m");
  const RunResult ran = run_cleave({"inspect", folder / "m", "--verify"});
  EXPECT_EQ(ran.exit_code, 5);
  EXPECT_TRUE(contains(ran.err, "has no manifest.json to verify with"));
}

TEST(Inspect, NothingThere_SaysWhatIsExpected) {
  const TempFolder folder;
  EXPECT_EQ(run_cleave({"inspect"}).exit_code, 2);
  EXPECT_EQ(run_cleave({"inspect", folder / "nope"}).exit_code, 5);
  EXPECT_EQ(run_cleave({"inspect", folder.path()}).exit_code, 5);
  const RunResult preset = run_cleave({"inspect", "llama-tiny"});
  EXPECT_EQ(preset.exit_code, 5);
  EXPECT_TRUE(contains(preset.err, "; a preset has no files: train it with")) << preset.err;
}

// A run in progress: two of five steps, and a third that is being written.
void write_run(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "report.json")
      << R"({"title": "m on 1 rank", "outcome": "", "num_steps": 5, "first_step": 1, "wall_s": 0,)"
      << R"( "settings": {"dtype": "fp32"}, "memory": []})";
  std::ofstream(folder / "metrics.jsonl")
      << "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": 2.25}\n{\"step\": 3, \"lo";
}

TEST(Inspect, RunBeforeItsFirstCheckpoint_SaysHowFarItIs) {
  const TempFolder folder;
  write_run(folder / "a");
  const std::string found = (folder / "a").string() +
                            ": the run (m on 1 rank) has no checkpoint yet; 2 of 5 steps are done";
  for (const Words& words :
       {Words{"inspect", folder / "a"}, Words{"generate", folder / "a", "--prompt", "x"},
        Words{"diff", folder / "a", folder / "a"},
        Words{"convert", folder / "a", "--to", folder / "b"}}) {
    const RunResult ran = run_cleave(words);
    EXPECT_EQ(ran.exit_code, 5) << words[0];
    EXPECT_EQ(ran.err, "cleave: " + found + "\n") << words[0];
  }
  std::filesystem::remove(folder / "a/metrics.jsonl");
  std::ofstream(folder / "a/report.json")
      << R"({"title": "m on 1 rank", "outcome": "", "num_steps": 5, "first_step": 1, "wall_s": 0,)"
      << R"( "settings": {"checkpoints": "every 2 steps and at the end"}, "memory": []})";
  EXPECT_TRUE(contains(run_cleave({"inspect", folder / "a"}).err,
                       "; 0 of 5 steps are done; it saves every 2 steps and at the end\n"));
  for (const char* name : {"step_00000001", "step_00000002", "step_00000003.superseded"}) {
    std::filesystem::create_directory(folder / "a" / name);
  }
  std::ofstream(folder / "a/config.json") << "{}";  // as the link to the newest checkpoint's file
  EXPECT_TRUE(contains(run_cleave({"inspect", folder / "a"}).err,
                       ": the file `latest` is not there; write the name of a checkpoint into it: "
                       "echo step_00000002 >" +
                           (folder / "a/latest").string() + "\n"));
}

/// A cache as huggingface_hub lays it out.
TEST(HubCache, InspectAndTokenizer_TakeAName) {
  const TempFolder folder;
  const std::filesystem::path model = folder / "models--org--name";
  write_model(model / "snapshots/abc");
  std::ofstream(model / "snapshots/abc/tokenizer.json")
      << R"({"model": {"type": "BPE", "merges": [], "vocab": {"a": 0, "b": 1}}})";
  std::filesystem::create_directories(model / "refs");
  std::ofstream(model / "refs/main") << "abc";
  const RunWith cache{.environment = {"HF_HUB_CACHE=" + folder.path().string()}};
  EXPECT_EQ(parsed(run_cleave({"inspect", "org/name", "--json"}, cache))["parameters"], 17);
  EXPECT_EQ(run_cleave({"inspect", "org/other"}, cache).exit_code, 5);
  const Words named{"tokenize", "--tokenizer", "org/name", "--text", "b"};
  const Words by_path{"tokenize", "--tokenizer", model / "snapshots/abc", "--text", "b"};
  const RunResult want = run_cleave(by_path), got = run_cleave(named, cache);
  EXPECT_EQ(want.exit_code, 0) << want.err;
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.out, want.out);
  EXPECT_TRUE(
      contains(run_cleave({"tokenize", "--tokenizer", "org/other", "--text", "b"}, cache).err,
               "--tokenizer org/other: no such folder, and not in the Hugging Face cache"));
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Report, RunInProgress_IsWrittenIntoItsFolder) {
  const TempFolder folder;
  write_run(folder / "a");
  const RunResult ran = run_cleave({"report", folder / "a"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.out, "report: " + (folder / "a/report.html").string() + "\n");
  const std::string page = text_of(folder / "a/report.html");
  EXPECT_TRUE(contains(page, "not ended: step 2 of 5"));
  EXPECT_TRUE(contains(page, "<dd>2.2500</dd>"));
}

TEST(Report, SeveralRuns_AreComparedInThePageOfOut) {
  const TempFolder folder;
  write_run(folder / "a");
  write_run(folder / "b");
  const RunResult ran =
      run_cleave({"report", folder / "a", folder / "b", "--out", folder / "c.html"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(contains(text_of(folder / "c.html"), "<h1>2 runs compared</h1>"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a/report.html"));
}

TEST(Report, SeveralRunsWithoutOut_AreComparedInTheCurrentFolder) {
  const TempFolder folder;
  write_run(folder / "a");
  write_run(folder / "b");
  const RunResult ran = run_program(
      {"/bin/sh", "-c", "cd \"$1\" && exec \"$0\" report a b", test::program(), folder / "."});
  EXPECT_EQ(ran.out, "report: comparison.html\n") << ran.err;
  EXPECT_TRUE(contains(text_of(folder / "comparison.html"), "<h1>2 runs compared</h1>"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a/report.html"));
}

TEST(Report, NoRun_SaysWhatIsExpectedAndWritesNothing) {
  const TempFolder folder;
  EXPECT_EQ(run_cleave({"report"}).exit_code, 2);
  const RunResult other = run_cleave({"report", folder.path()});
  EXPECT_EQ(other.exit_code, 5);
  EXPECT_EQ(other.err, "cleave: " + folder.path().string() +
                           ": is not a run: it has no report.json; give the --out folder of a "
                           "cleave train\n");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  write_run(folder / "a");
  EXPECT_EQ(run_cleave({"report", folder / "a", "--out", folder / "a/metrics.jsonl"}).exit_code, 2);
  std::ofstream(folder / "a/metrics.jsonl") << "[]\n";
  const RunResult broken = run_cleave({"report", folder / "a"});
  EXPECT_EQ(broken.exit_code, 4);
  EXPECT_TRUE(contains(broken.err, "a/metrics.jsonl:1: ")) << broken.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "a/report.html"));
}

TEST(Tokenize, Bytes_AreTheirOwnIds) {
  const json result =
      parsed(run_cleave({"tokenize", "--tokenizer", "bytes", "--text", "A\xC3\xBC", "--json"}));
  EXPECT_EQ(result["ids"], json({65, 0xC3, 0xBC}));
  EXPECT_EQ(result["count"], 3);
  EXPECT_EQ(result["bytes"], 3);
  EXPECT_EQ(result["characters"], 2);
  EXPECT_EQ(result["round_trip"], true);
}

TEST(Tokenize, StdinAndFile_AreReadWhole) {
  const TempFolder folder;
  std::ofstream(folder / "t.txt") << "a\nb\n";
  const std::vector<std::string> words = {"tokenize", "--tokenizer", "bytes", "--json"};
  EXPECT_EQ(parsed(run_cleave(words, {.input = "a\nb\n"}))["ids"], json({97, 10, 98, 10}));
  std::vector<std::string> from_file = words;
  from_file.insert(from_file.end(), {"--file", folder / "t.txt"});
  EXPECT_EQ(parsed(run_cleave(from_file))["ids"], json({97, 10, 98, 10}));
}

TEST(Tokenize, StdinOfATerminal_IsAnnounced) {
  TerminalProgram program({test::program(), "tokenize", "--tokenizer", "bytes"});
  EXPECT_EQ(program.read_until("\n"), "reading stdin; Ctrl-D on an empty line ends it\r\n");
  program.type("ab\n\x04");
  const std::string shown = program.read_until("round trip");
  EXPECT_TRUE(contains(shown, "97 98 10")) << shown;
  (void)program.read_until("the end of the program");
  EXPECT_EQ(program.wait(), 0);
}

TEST(Tokenize, FolderWithoutATokenizer_IsAnIoError) {
  const TempFolder folder;
  EXPECT_EQ(run_cleave({"tokenize", "--tokenizer", folder.path(), "--text", "a"}).exit_code, 5);
  EXPECT_EQ(run_cleave({"tokenize", "--text", "a"}).exit_code, 2);
}

TEST(Doctor, ExitCodes_ListsEachOnce) {
  const RunResult ran = run_cleave({"doctor", "--exit-codes"});
  for (const char* row :
       {"0      ok", "1      different", "2      usage", "3      shape", "4      format",
        "5      io", "6      peer", "7      timeout", "8      desync", "9      numerics",
        "10     memory", "70     bug", "128+n  signal"}) {
    EXPECT_TRUE(contains('\n' + ran.out, std::string("\n") + row + ' ')) << row;
  }
  const json list = parsed(run_cleave({"doctor", "--exit-codes", "--json"}));
  EXPECT_EQ(list.size(), 12U);
  EXPECT_EQ(list[6]["name"], "peer");
}

TEST(Doctor, Json_HasEverySectionAndWhatTheLibraryAdds) {
  const json facts = parsed(run_fake({"doctor", "--json"}));
  for (const char* section : {"cleave", "cpu", "memory", "limits", "transports", "problems"}) {
    EXPECT_TRUE(facts.contains(section)) << section;
  }
  EXPECT_EQ(facts["cleave"]["libtorch_version"], "9.9.9");
  EXPECT_GE(facts["cpu"]["usable_cores"], 1);
  EXPECT_GT(facts["memory"]["total_bytes"], 0);
}

TEST(Doctor, WithoutTheLibrary_StillReports) {
  const TempFolder folder;
  std::filesystem::copy_file(test::program(), folder / "cleave");
  const RunResult ran = run_program({folder / "cleave", "doctor"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_TRUE(contains(ran.out, "there is no " + (folder / "libcleave.so").string())) << ran.out;
}

TEST(Doctor, FewOpenFiles_IsNamedAsAProblem) {
  const RunResult ran = run_program(
      {"/bin/bash", "-c", std::string("ulimit -n 128; ") + test::program() + " doctor"});
  EXPECT_TRUE(
      contains(ran.out, "problem: only 128 files can be open; raise the limit: ulimit -n 1024"))
      << ran.out;
}

// oneMKL would end a command that computes, with an error about its own library.
TEST(Doctor, CurrentFolderThatWasDeleted_IsReportedLikeInOtherCommands) {
  const TempFolder folder;
  const auto in_deleted = [&](const Words& command) {
    const std::string gone = folder / "gone";
    std::filesystem::create_directory(gone);
    Words words{"/bin/bash", "-c", "cd \"$1\" && rmdir \"$1\" && shift && exec \"$@\"",
                "bash",      gone, test::program()};
    words.insert(words.end(), command.begin(), command.end());
    return run_program(words);
  };
  const std::string text = "the current folder was deleted; change to one that exists (cd)\n";
  EXPECT_TRUE(contains(in_deleted({"doctor"}).out, "problem: most commands cannot run: " + text));
  const RunResult ran = in_deleted({"plan"});
  EXPECT_EQ(ran.exit_code, 5);
  EXPECT_EQ(ran.err, "cleave: " + text);
}

TEST(Completion, Bash_ParsesAndCompletes) {
  const TempFolder folder;
  const std::string script = folder / "c.bash";
  const std::string make = test::program() + " completion bash > " + script;
  EXPECT_EQ(run_program({"/bin/bash", "-c", make + " && bash -n " + script}).exit_code, 0);
  const auto completed = [&](const std::string& words, int at) {
    return run_program({"/bin/bash", "-c",
                        "source " + script + "; COMP_WORDS=(" + words + "); COMP_CWORD=" +
                            std::to_string(at) + "; _cleave; echo ${COMPREPLY[@]}"})
        .out;
  };
  EXPECT_EQ(completed("cleave tra", 1), "train\n");
  EXPECT_EQ(completed("cleave train --weigh", 2), "--weight-decay\n");
  EXPECT_EQ(completed("cleave train --schedule ''", 3), "cosine linear constant wsd\n");
  EXPECT_EQ(completed("cleave generate --early-stopping n", 3), "never\n");
  EXPECT_EQ(completed("cleave plan --cluster h100", 3), "h100-80gb h100-96gb\n");
  EXPECT_EQ(completed("cleave bench coll", 2), "collectives\n");
  EXPECT_EQ(completed("cleave bench collectives --one", 3), "--one-core\n");
  EXPECT_EQ(completed("cleave bench train --sh", 3), "--shape\n");
  EXPECT_EQ(completed("cleave bench train --one", 3), "\n");
  EXPECT_EQ(completed("cleave lesson ''", 2), "tp sp pp zero fsdp\n");
  EXPECT_EQ(completed("cleave completion ''", 2), "bash zsh fish\n");
  EXPECT_EQ(completed("cleave help tra", 2), "train\n");
  std::ofstream(folder / "my text.txt") << "x";
  std::ofstream(folder / "my*.txt") << "x";
  EXPECT_EQ(run_program({"/bin/bash", "-c",
                         "source " + script + "; cd " + folder.path().string() +
                             "; COMP_WORDS=(cleave train --data my); COMP_CWORD=3; _cleave; "
                             "printf '%s\\n' \"${COMPREPLY[@]}\" | LC_ALL=C sort"})
                .out,
            "my text.txt\nmy*.txt\n");
}

TEST(Completion, Fish_HasFlagsChoicesAndFiles) {
  const std::string script = run_cleave({"completion", "fish"}).out;
  const std::string train = "\ncomplete -c cleave -n '__cleave_is train' ";
  EXPECT_TRUE(contains(script, train + "-l schedule -x -a 'cosine linear constant wsd' -d "));
  EXPECT_TRUE(contains(script, train + "-l data -rF -d "));
  EXPECT_TRUE(contains(script, train + "-l adam-eps -x -d 'Adam\\'s epsilon'\n"));
  EXPECT_TRUE(contains(script, train + "-l resume -d "));
  const TempFolder folder;
  const std::string file = folder / "c.fish";
  const std::string make = test::program() + " completion fish > " + file;
  const std::string complete =
      "fish -c 'source " + file +
      "; complete -C \"cleave train --weigh\"; complete -C \"cleave lesson zer\"; "
      "complete -C \"cleave help lau\"; complete -C \"cleave bench train --sh\"' | cut -f1 | "
      "tr '\\n' ' ' | grep -qx -e '--weight-decay zero launch --shape '";
  const RunResult ran =
      run_program({"/bin/bash", "-c",
                   "! command -v fish > /dev/null || { " + make + " && " + complete + "; }"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
}

// Oracle: zsh itself, if it is there; its functions for completion are replaced by ones that print.
TEST(Completion, Zsh_HasFlagsChoicesAndFiles) {
  const TempFolder folder;
  const std::string file = folder / "c.zsh";
  const std::string script = run_cleave({"completion", "zsh"}).out;
  EXPECT_TRUE(contains(script, "NAME|FILE.json: _cleave_words_or_files here a100-80gb h100-80gb"));
  std::ofstream(file) << "compdef() { }\n_alternative() { print -l -- $@ }\n"
                      << script << "_cleave_words_or_files here h200\n";
  const RunResult ran = run_program({"/bin/bash", "-c",
                                     "! command -v zsh > /dev/null && printf 'words:word:(here "
                                     "h200)\nfiles:file:_files\n' || zsh -f " +
                                         file});
  EXPECT_EQ(ran.out, "words:word:(here h200)\nfiles:file:_files\n") << ran.err;
}

TEST(Completion, UnknownShell_IsRefused) {
  EXPECT_EQ(run_cleave({"completion", "tcsh"}).err,
            "cleave: shell is 'tcsh'; expected one of bash, zsh, fish\n");
  EXPECT_EQ(run_cleave({"completion", "zsh"}).exit_code, 0);
}

TEST(Flight, FileOfAnotherKind_IsRefusedWithWhatIsExpected) {
  const RunResult ran = run_cleave({"doctor", "--flight", test::source_file("run")});
  EXPECT_EQ(ran.exit_code, 4);
  EXPECT_EQ(ran.err, "cleave: " + test::source_file("run") +
                         ": found '#', expected a value (byte 0); a flight log is a JSON file that "
                         "a rank has written\n");
}

TEST(Stdout, ReaderThatLeaves_EndsTheProgramWith141) {
  const TempFolder folder;
  const std::string text = folder / "text";  // its ids are more than a pipe holds
  std::ofstream(text) << std::string(300'000, 'x');
  const RunResult ran = run_program({"/bin/bash", "-c",
                                     test::program() + " tokenize --tokenizer bytes --file " +
                                         text + " < /dev/zero | true; echo ${PIPESTATUS[0]}"});
  EXPECT_EQ(ran.out, "141\n");
  EXPECT_EQ(ran.err, "");
}

TEST(Stdout, FullDisk_IsAnIoError) {
  const RunResult ran =
      run_program({"/bin/bash", "-c", test::program() + " train --help > /dev/full"});
  EXPECT_EQ(ran.exit_code, 5);
  EXPECT_EQ(ran.err, "cleave: stdout: cannot be written; the output is incomplete\n");
}

// plan prints through the log, --help through std::cout.
TEST(Stdout, FullDiskUnderTheResult_IsAnIoError) {
  const RunResult ran = run_program(
      {"/bin/bash", "-c", test::program() + " plan --model llama-tiny --json > /dev/full"});
  EXPECT_EQ(ran.exit_code, 5) << ran.err;
  EXPECT_EQ(ran.err, "cleave: stdout: cannot be written; the output is incomplete\n");
}

// A handmade log: ranks 0 and 1 wait on tp; of rank 2, on another host, only operations on dp are
// known; rank 3 left before it used tp; rank 4 never joined.
TEST(Doctor, FlightLog_AccusesOnlyRanksWhoseCountIsKnown) {
  const TempFolder folder;
  const auto operation = [](int axis, int sequence) {
    return json{{"number", 7},   {"op", "all_reduce"}, {"sequence", sequence},
                {"axis", axis},  {"dtype", "fp32"},    {"count", 1},
                {"begin_ns", 0}, {"end_ns", nullptr},  {"site", "here"}};
  };
  const auto rank = [](int number, const char* state, int num_operations, const json& waits_for,
                       const json& operations) {
    return json{{"rank", number},
                {"pid", 10 + number},
                {"step", -1},
                {"state", state},
                {"num_operations", num_operations},
                {"waits_for", waits_for},
                {"operations", operations}};
  };
  const json log = {
      {"flight_log", 1},
      {"why", "timeout"},
      {"written_by", 0},
      {"now_ns", 9},
      {"axes",
       json::parse(
           R"([{"name": "tp", "ranks": [0, 1, 2, 3, 4]}, {"name": "dp", "ranks": [2, 3]}])")},
      {"ranks", json::array({rank(0, "joined", 300, {1}, json::array({operation(0, 41)})),
                             rank(1, "joined", 300, json::array(), json::array({operation(0, 40)})),
                             rank(2, "joined", 300, json::array(), json::array({operation(1, 9)})),
                             rank(3, "left", 1, json::array(), json::array({operation(1, 9)})),
                             rank(4, "absent", 0, json::array(), json::array())})}};
  std::ofstream(folder / "log.json") << log;
  const RunResult text = run_cleave({"doctor", "--flight", folder / "log.json"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "\nstuck   rank 1 (pid 11) is in all_reduce 40 on axis tp"))
      << text.out;
  EXPECT_TRUE(contains(text.out, "\nworks   rank 2 (pid 12) is in all_reduce 9")) << text.out;
  EXPECT_TRUE(contains(text.out, "\nleft    rank 3 (pid 13, left) is in all_reduce 9")) << text.out;
  EXPECT_TRUE(contains(text.out, "\nabsent  rank 4 (pid 14) is not yet there")) << text.out;
  const json found = parsed(run_cleave({"doctor", "--flight", folder / "log.json", "--json"}));
  EXPECT_EQ(
      found["behind"],
      json::parse(R"(["axis tp: ranks 3, 4 began no collective, rank 0 last began collective )"
                  R"(41", "axis tp: rank 1 last began collective 40, rank 0 last began )"
                  R"(collective 41"])"));
}

// Row R13. Between too little memory to start and enough, there is too little for the file.
TEST(MemoryLimit, LittleMemory_IsReportedWithItsCode) {
  if (kIsInstrumented) GTEST_SKIP() << "sanitizers reserve more addresses than any limit";
  const TempFolder folder;
  std::string header = "{";
  for (int i = 0; i < 250; ++i) {
    header += std::string(i > 0 ? "," : "") + '"' + std::to_string(i) + std::string(60'000, 'n') +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  write_safetensors(folder / "wide.safetensors", header + "}", 0);
  int num_reported = 0;
  RunResult ran;
  for (int mebibytes = 60; mebibytes <= 400 && ran.exit_code != 0; mebibytes += 10) {
    ran = run_program({"/bin/bash", "-c",
                       "ulimit -v " + std::to_string(mebibytes * 1024) + "; exec \"$0\" \"$@\"",
                       test::program(), "inspect", folder / "wide.safetensors", "--json"});
    const bool is_not_started = ran.exit_code == 127;
    EXPECT_TRUE(is_not_started || ran.exit_code == 0 || ran.exit_code == 10)
        << mebibytes << " MiB: exit " << ran.exit_code << ": " << ran.err;
    num_reported += ran.exit_code == 10 ? 1 : 0;
  }
  EXPECT_GT(num_reported, 0);
  EXPECT_EQ(ran.exit_code, 0) << "400 MiB should be enough";
}

// Row H4. The shared segment is an unnamed file.
TEST(FileLimit, TooSmallForTheSharedSegment_IsReportedAtTheStart) {
  const RunResult ran = run_program(
      {"/bin/bash", "-c", "ulimit -f 1; exec \"$0\" launch -n 2 -- /bin/true", test::program()});
  EXPECT_EQ(ran.exit_code, 10);
  EXPECT_TRUE(contains(ran.err, "raise the limit on file sizes with ulimit -f\n")) << ran.err;
  EXPECT_LT(ran.seconds, 1);
}

}  // namespace
}  // namespace cleave::test
