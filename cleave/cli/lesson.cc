#include "cleave/report/lesson.h"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/base/stop.h"
#include "cleave/cli/command.h"
#include "cleave/cli/failed_start.h"
#include "cleave/cli/library.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/file.h"
#include "cleave/report/replay.h"
#include "cleave/train/options.h"

namespace cleave::cli {
namespace {

namespace fs = std::filesystem;
using Object = nlohmann::ordered_json;

constexpr int64_t kRecordedStep = 3;

/// The subject of a lesson, and the flags of its two runs.
struct Lesson {
  const char* name;
  const char* title;
  const char* before;  ///< what the first run is
  int ranks;
  int micro_batches;
  void (*set_before)(TrainOptions& o);
  void (*set)(TrainOptions& o);  ///< in addition
};

const Lesson kLessons[] = {
    {"tp", "tensor parallelism: two ranks share every matrix", "one rank", 2, 1,
     [](TrainOptions&) {}, [](TrainOptions& o) { o.tp = 2; }},
    {"sp", "sequence parallelism: two ranks also share the layers between the matrices",
     "tensor parallelism alone", 2, 1, [](TrainOptions& o) { o.tp = 2; },
     [](TrainOptions& o) { o.sequence_parallel = true; }},
    {"pp", "pipeline parallelism: four ranks hold two blocks each", "a pipeline in GPipe's order",
     4, 8,
     [](TrainOptions& o) {
       o.pp = 4;
       o.micro_batch_size = 1;
       o.schedule_pp = "gpipe";
     },
     [](TrainOptions& o) { o.schedule_pp = "1f1b"; }},
    {"zero", "ZeRO-1: four data-parallel ranks share the optimizer", "data parallelism alone", 4, 1,
     [](TrainOptions& o) { o.dp = 4; }, [](TrainOptions& o) { o.zero = 1; }},
    {"fsdp", "FSDP: four data-parallel ranks share weights, gradients and optimizer",
     "data parallelism alone", 4, 1, [](TrainOptions& o) { o.dp = 4; },
     [](TrainOptions& o) { o.fsdp = true; }}};

struct Options {
  std::string name;
  std::string out;
  bool json = false;
};

const Lesson& lesson_of(const std::string& name) {
  std::string names;
  for (const Lesson& lesson : kLessons) {
    if (name == lesson.name) return lesson;
    names += str(names.empty() ? "" : ", ", lesson.name);
  }
  throw Error(Code::kUsage, name.empty() ? str("no lesson given; choose one of ", names)
                                         : str("no lesson '", name, "'; choose one of ", names));
}

Object config_of(const LessonSizes& s) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", s.vocab},
          {"hidden_size", s.hidden},
          {"intermediate_size", s.ffn},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", 4},
          {"max_position_embeddings", s.seq_len},
          {"tie_word_embeddings", false}};
}

/// The sums of two numbers below 100: "17 + 4 = 21". Each pair once, in a fixed mixed order.
std::string sums_text() {
  constexpr int kPairs = 10000, kStep = 7919;  // a prime, so every pair comes once
  std::string text;
  for (int i = 0; i < kPairs; ++i) {
    const int pair = i * kStep % kPairs;
    const int a = pair / 100, b = pair % 100;
    text += str(a, " + ", b, " = ", a + b, '\n');
  }
  return text;
}

/// Writes the model and the data into the folder, and returns the options that all runs share.
TrainOptions common_options(const LessonSizes& sizes, const fs::path& folder) {
  TrainOptions o;
  o.model = (folder / "model.json").string();
  o.data = {(folder / "sums.txt").string()};
  o.tokenizer = "bytes";
  o.batch_size = sizes.batch;
  o.seq_len = sizes.seq_len;
  o.steps = kRecordedStep;
  o.record_step = kRecordedStep;
  o.threads_per_rank = 1;  // the rank's CPU time is then that of its thread
  write_atomic(o.model, std::string_view(config_of(sizes).dump(1) + '\n'));
  write_atomic(o.data[0], std::string_view(sums_text()));
  return o;
}

LessonRun trained(TrainOptions o, const fs::path& folder) {
  o.out = folder.string();
  library_function<decltype(cleave_train)>("cleave_train")(o);
  if (const int signal = StopSignal::pending(); signal != 0) throw Stopped{signal};
  return read_lesson_run(o.out);
}

/// What the letters of the formulas stand for.
std::string letters_of(const LessonSizes& s) {
  const std::string ranks =
      s.micro_batches > 1 ? str("p = ", s.ranks, " stages, m = ", s.micro_batches, " micro-batches")
                          : str("n = ", s.ranks, " ranks");
  return str("b = ", s.batch, " sequences of s = ", s.seq_len, " tokens, width h = ", s.hidden,
             ", L = ", s.layers, " blocks, ", ranks, ", psi = ", all_weights(s), " weights");
}

void print(const Lesson& lesson, const LessonSizes& sizes, const std::vector<LessonAnswer>& answers,
           const fs::path& page, bool json) {
  Object list = Object::array();
  if (!json) {
    log_info("lesson    ", lesson.title);
    log_info("letters   ", letters_of(sizes));
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    const LessonAnswer& a = answers[i];
    list.push_back({{"question", a.question},
                    {"formula", a.formula},
                    {"expected", a.expected},
                    {"measured", a.measured},
                    {"remark", a.remark}});
    if (json) continue;
    log_info('\n', i + 1, ". ", a.question);
    log_info("formula   ", a.formula);
    log_info("expected  ", number_text(a.expected, a.unit));
    log_info("this run  ", number_text(a.measured, a.unit));
    log_info(a.remark);
  }
  const Object all = {{"lesson", lesson.name}, {"page", page.string()}, {"questions", list}};
  log_info(json ? all.dump(-1, ' ', false, Object::error_handler_t::replace)
                : str("\npage      ", page.string()));
}

/// Trains both runs in `folder`, and answers the questions.
void teach(const Lesson& lesson, const fs::path& folder, bool json) {
  LessonRuns runs;
  runs.sizes.ranks = lesson.ranks;
  runs.sizes.micro_batches = lesson.micro_batches;
  TrainOptions o = common_options(runs.sizes, folder);
  set_quiet(true);  // the lesson says itself what it does
  if (!json) log_info("training ", kRecordedStep, " steps: ", lesson.before);
  lesson.set_before(o);
  runs.before = trained(o, folder / "before");
  if (!json) log_info("training ", kRecordedStep, " steps: ", lesson.title);
  lesson.set(o);
  runs.run = trained(o, folder / "run");
  const std::vector<LessonAnswer> answers = lesson_answers(lesson.name, runs);
  const fs::path page = folder / "run" / kReplayPageName;
  write_atomic(page, std::string_view(with_lesson(read_file(page), lesson.title, answers)));
  print(lesson, runs.sizes, answers, page, json);
}

/// Removes the files of a lesson from a folder that was empty or missing before.
void empty_folder(const fs::path& folder) {
  std::error_code ignored;
  fs::directory_iterator entry(folder, ignored);
  for (; !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    std::error_code problem;
    fs::remove_all(entry->path(), problem);
  }
}

int run(const Options& options) {
  const Lesson& lesson = lesson_of(options.name);
  const fs::path folder = options.out.empty() ? str("lesson-", lesson.name) : options.out;
  CLEAVE_CHECK(!read_environment(), Code::kUsage,
               "a lesson starts its own ranks; run it without a launcher");
  std::error_code problem;
  CLEAVE_CHECK(!fs::exists(folder, problem) || fs::is_empty(folder, problem), Code::kUsage,
               "--out ", folder.string(), " is not empty; choose another folder, or remove it");
  const StopSignal stop;  // from here on a signal leaves no files, also while libtorch is loaded
  const FailedStart start(folder);
  fs::create_directories(folder, problem);
  CLEAVE_CHECK(!problem, Code::kIo, folder.string(), ": ", problem.message());
  try {
    teach(lesson, folder, options.json);
  } catch (...) {  // also after Ctrl-C: the same command then starts again
    empty_folder(folder);
    start.clean_up();
    throw;
  }
  return 0;
}

}  // namespace

Command lesson_command() {
  return {
      .name = "lesson",
      .summary = "show a kind of parallelism in a recorded step, with questions and answers",
      .usage = "tp|sp|pp|zero|fsdp [flags]",
      .define = [](Flags& flags) -> Run {
        auto options = std::make_shared<Options>();
        flags.positional(&options->name,
                         {"lesson", "tp|sp|pp|zero|fsdp",
                          "tensor, sequence or pipeline parallelism, ZeRO-1, or FSDP"});
        flags.add({&options->out, "out", "DIR", "new folder for the lesson's runs", "lesson-NAME"});
        flags.add({&options->json, "json", "", "print one line of JSON", "off"});
        return [options] { return run(*options); };
      }};
}

}  // namespace cleave::cli
