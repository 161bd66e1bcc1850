#include "cleave/cli/check.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/file.h"
#include "cleave/file/model_path.h"
#include "cleave/format/gguf.h"
#include "cleave/format/manifest.h"
#include "cleave/report/metrics.h"
#include "cleave/report/record.h"

namespace cleave::cli {
namespace {

namespace fs = std::filesystem;

std::string reason(int number) {
  return std::generic_category().message(number);
}

// A shell replaces ~ only where a word begins: not in --out=~/run, and not in a config file.
void refuse_tilde(std::string_view flag, const std::string& path) {
  std::error_code problem;
  CLEAVE_CHECK(!path.starts_with("~/") || fs::exists("~", problem), Code::kUsage, flag, ' ', path,
               ": the shell did not replace ~; give the whole path, or use $HOME", path.substr(1));
}

// Refuses a folder that is, or lies behind, a link whose target is missing.
void refuse_dangling_link(std::string_view flag, const std::string& folder) {
  std::error_code problem;
  for (fs::path path = folder; !path.empty(); path = path.parent_path()) {
    const bool is_dangling = fs::is_symlink(path, problem) && !fs::exists(path, problem);
    CLEAVE_CHECK(!is_dangling, Code::kIo, flag, ' ', folder, ": ", path.string(), " is a link to ",
                 fs::read_symlink(path, problem).string(),
                 ", which is not there; make that folder, or mount its disk");
    if (path == path.parent_path()) return;
  }
}

// Refuses a folder that would be in a file.
void refuse_file_above(std::string_view flag, const std::string& folder) {
  std::error_code problem;
  fs::path path = fs::path(folder).parent_path();
  while (path.has_relative_path() && !fs::exists(path, problem)) path = path.parent_path();
  CLEAVE_CHECK(path.empty() || !fs::exists(path, problem) || fs::is_directory(path, problem),
               Code::kIo, flag, ' ', folder, ": ", path.string(),
               " is a file, and no folder can be in it; choose another folder");
}

// The newest checkpoint by its name, not one that a resumed run has renamed; empty if there is
// none.
std::string newest_checkpoint_in(const fs::path& run) {
  std::string newest;
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, problem)) {
    const std::string name = entry.path().filename();
    const bool is_checkpoint = name.starts_with("step_") && name.find('.') == std::string::npos;
    // Steps have leading zeros: of two names, the longer or later one has the higher step.
    const bool is_newer = std::pair(name.size(), name) > std::pair(newest.size(), newest);
    if (is_checkpoint && is_newer) newest = name;
  }
  CLEAVE_CHECK(!problem, Code::kIo, run.string(), ": ", problem.message());
  return newest;
}

// The newest checkpoint of the folder; without one, the file `latest` or a checkpoint that a
// resumed run has renamed; empty if there is none. A partial checkpoint does not count: its writer
// died.
std::string checkpoint_in(const fs::path& folder) {
  std::string newest = newest_checkpoint_in(folder);
  if (!newest.empty()) return newest;
  std::error_code problem;
  if (fs::exists(folder / "latest", problem)) return "latest";
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, problem)) {
    std::string name = entry.path().filename();
    if (name.starts_with("step_") && !name.ends_with(kPartialSuffix)) return name;
  }
  CLEAVE_CHECK(!problem, Code::kIo, folder.string(), ": ", problem.message());
  return "";
}

// The first file by name of the folder with a model's weights; empty if there is none.
std::string weights_in(const fs::path& folder) {
  std::string first;
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, problem)) {
    const std::string name = entry.path().filename();
    const bool is_bin = name.starts_with("pytorch_model") && name.ends_with(".bin");
    const bool has_weights = is_bin || name.ends_with(".safetensors");
    std::error_code is_dangling;  // the link of a run to a checkpoint that was deleted
    if (has_weights && fs::exists(entry.path(), is_dangling) && (first.empty() || name < first))
      first = name;
  }
  CLEAVE_CHECK(!problem, Code::kIo, folder.string(), ": ", problem.message());
  return first;
}

// Whether the folder has a checkpoint. Other programs have folders such as step_500.
bool has_whole_checkpoint(const fs::path& folder) {
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, problem)) {
    const bool is_named = entry.path().filename().string().starts_with("step_");
    if (is_named && fs::exists(entry.path() / kManifestName, problem)) return true;
  }
  return false;
}

}  // namespace

void require_file(std::string_view flag, const std::string& path) {
  std::error_code problem;
  CLEAVE_CHECK(path != "-" || fs::exists(path, problem), Code::kUsage, flag,
               " - would be stdin, which this flag does not read; write it into a file");
  CLEAVE_CHECK(path.find("://") == std::string::npos, Code::kIo, flag, ' ', path,
               ": is a URL; download it, and give the file");
  refuse_tilde(flag, path);
  const std::string first = path.substr(0, path.find(','));  // perhaps FILE:WEIGHT
  const bool is_list =
      !fs::exists(path, problem) && first != path &&
      (fs::exists(first, problem) || fs::exists(first.substr(0, first.rfind(':')), problem));
  CLEAVE_CHECK(!is_list, Code::kIo, flag, ' ', path, ": no such file; separate files by spaces");
  const size_t colon = path.rfind(':');
  const bool has_weight = colon != std::string::npos && !fs::exists(path, problem) &&
                          fs::exists(path.substr(0, colon), problem);
  CLEAVE_CHECK(!has_weight, Code::kIo, flag, ' ', path,
               ": no such file; only --data of train takes weights, as in FILE:0.5");
  CLEAVE_CHECK(!fs::is_directory(path, problem), Code::kIo, flag, ' ', path,
               ": is a folder; expected a file");
  CLEAVE_CHECK(access(path.c_str(), R_OK) == 0, Code::kIo, flag, ' ', path, ": ", reason(errno));
}

void require_files(std::string_view flag, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) require_file(flag, path);
}

void announce_stdin() {
  if (isatty(STDIN_FILENO) != 0) std::cerr << "reading stdin; Ctrl-D on an empty line ends it\n";
}

void require_checkpoint(const std::string& folder) {
  const fs::path path = folder;
  const auto has = [&](std::string_view name) {
    std::error_code problem;
    return fs::exists(path / name, problem);
  };
  if (!has(kRecordName) || has(kLatestName)) return;
  const std::string unnamed = newest_checkpoint_in(path);
  CLEAVE_CHECK(unnamed.empty(), Code::kIo, folder, ": the file `latest` is not there; write ",
               "the name of a checkpoint into it: echo ", unnamed, " >", folder, "/latest");
  if (has("config.json") || has("params.json")) return;
  const RunRecord record = read_record(folder);
  const bool has_metrics = has(kMetricsName);
  const auto steps = has_metrics ? read_metrics(path / kMetricsName) : std::vector<StepMetrics>{};
  std::string saves;
  for (const auto& [name, value] : record.settings) {
    if (name == kSavesSetting) saves = str("; it saves ", value);
  }
  throw Error(Code::kIo, str(folder, ": the run (", record.title, ") has no checkpoint yet; ",
                             steps.empty() ? 0 : steps.back().step, " of ", record.num_steps,
                             " steps are done", saves));
}

void require_model(std::string_view flag, const std::string& model, bool takes_presets) {
  refuse_tilde(flag, model);
  std::error_code problem;
  if (fs::is_directory(model, problem)) return require_checkpoint(model);
  if (is_gguf(model)) return;
  if (is_hub_name(model)) return (void)hub_model(model, flag);
  const bool is_config = takes_presets && fs::path(model).extension() == ".json";
  if (is_config) return require_file(flag, model);
  const bool is_name = model.find('/') == std::string::npos && !fs::exists(model, problem);
  if (takes_presets && is_name) return;
  CLEAVE_CHECK(!fs::exists(model, problem), Code::kIo, flag, ' ', model,
               ": is a file; expected a model or run folder, ",
               takes_presets ? "a GGUF file, a config.json with sizes, or the name of a preset"
                             : "or a GGUF file");
  throw Error(Code::kIo, str(flag, ' ', model, ": no such folder",
                             is_name ? "; a preset has no weights: train it with cleave train "
                                       "--model NAME --out DIR, then give DIR"
                                     : ""));
}

void require_adapter(const std::string& adapter) {
  if (adapter.empty()) return;
  refuse_tilde("--adapter", adapter);
  if (is_hub_name(adapter)) return (void)hub_model(adapter, "--adapter");
  std::error_code problem;
  CLEAVE_CHECK(fs::is_directory(adapter, problem), Code::kIo, "--adapter ", adapter,
               fs::exists(adapter, problem) ? ": is a file" : ": no such folder",
               "; expected a PEFT folder, or the --out folder of a run with --lora");
  require_checkpoint(adapter);
}

void require_tokenizer(const std::string& tokenizer) {
  if (tokenizer.empty() || tokenizer == "bytes" || is_gguf(tokenizer)) return;
  if (is_hub_name(tokenizer)) return (void)hub_model(tokenizer, "--tokenizer");
  std::error_code problem;
  CLEAVE_CHECK(!fs::is_regular_file(tokenizer, problem), Code::kIo, "--tokenizer ", tokenizer,
               ": is a file; give the folder that holds it, or a GGUF file");
  CLEAVE_CHECK(fs::is_directory(tokenizer, problem), Code::kIo, "--tokenizer ", tokenizer,
               ": no such folder; expected bytes, a folder with tokenizer files, a GGUF file or "
               "ORG/NAME of the Hugging Face cache");
}

void require_chat_template(const std::string& chat_template) {
  if (chat_template.empty() || chat_template == "chatml") return;
  std::error_code problem;
  const bool is_name = chat_template.find('/') == std::string::npos &&
                       fs::path(chat_template).extension().empty() &&
                       !fs::exists(chat_template, problem);
  CLEAVE_CHECK(!is_name, Code::kIo, "--chat-template ", chat_template,
               ": no such file; expected chatml, or a file with a template");
  require_file("--chat-template", chat_template);
}

void require_run_folder(const std::string& out) {
  refuse_tilde("--out", out);
  refuse_dangling_link("--out", out);
  refuse_file_above("--out", out);
  std::error_code problem;
  if (!fs::exists(out, problem)) return;
  CLEAVE_CHECK(fs::is_directory(out, problem), Code::kIo, "--out ", out,
               ": is a file; expected a folder");
  const std::string weights = weights_in(out);
  // A run has links to the weights of its newest checkpoint, or copies of them after scp -r.
  if (weights.empty() || has_whole_checkpoint(out)) return;
  const fs::path run = fs::weakly_canonical(out, problem).parent_path();
  CLEAVE_CHECK(!fs::exists(run / kLatestName, problem), Code::kUsage, "--out ", out,
               " is a checkpoint of the run ", run.string(), "; give the run's folder");
  throw Error(Code::kUsage, str("--out ", out, " is the folder of a model (", weights,
                                "), not of a run; choose another folder"));
}

void refuse_foreign_folder(const std::string& out) {
  std::string foreign;
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(out, problem)) {
    const std::string name = entry.path().filename();
    const bool is_of_run = name == kMetricsName || name == kRecordName || name == kLatestName ||
                           name == kTokensName || name.starts_with("step_") ||
                           name.starts_with("flight_log.");
    if (is_of_run) return;
    // Files that a file system or a scheduler creates there before the run starts.
    const std::string extension = entry.path().extension();
    const bool is_ignored = name.starts_with('.') || name == "lost+found" || extension == ".log" ||
                            extension == ".out" || extension == ".err";
    if (!is_ignored && (foreign.empty() || name < foreign)) foreign = name;
  }
  CLEAVE_CHECK(foreign.empty(), Code::kUsage, "--resume: ", out, " is not the folder of a run (it ",
               "holds ", foreign,
               "); give the run's folder, or leave out --resume to start a run "
               "there");
}

void refuse_used_folder(const std::string& out) {
  std::error_code problem;
  if (!fs::exists(out, problem)) return;
  const std::string checkpoint = checkpoint_in(out);
  CLEAVE_CHECK(checkpoint.empty(), Code::kUsage, "--out ", out, " already holds a run (",
               checkpoint, "); resume it with --resume or choose another folder");
}

void RefusedStart::note() const {
  std::error_code problem;
  if (job_.empty() || !fs::is_directory(path_.parent_path(), problem)) return;
  try {
    write_atomic(path_, job_);
  } catch (const Error&) {  // then the folder may not be written, and a restart fails too
  }
}

void RefusedStart::forget() const {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

bool RefusedStart::is_of_this_job() const {
  std::error_code problem;
  return !job_.empty() && fs::is_regular_file(path_, problem) && read_file(path_) == job_;
}

RefusedStart::RefusedStart(const std::string& out, const std::string& command)
    : path_(fs::path(out) / ".refused") {
  const char* id = std::getenv("TORCHELASTIC_RUN_ID");  // NOLINT(concurrency-mt-unsafe)
  if (id != nullptr) job_ = str(id, ' ', command, '\n');
}

void check_batch(int64_t batch_size, int64_t micro_batch_size, int dp) {
  CLEAVE_CHECK(batch_size >= dp, Code::kShape, "--batch-size is ", batch_size, ", fewer than the ",
               dp, " data-parallel ranks; give each at least one sequence");
  const int64_t share = (batch_size + dp - 1) / dp;
  CLEAVE_CHECK(micro_batch_size <= share, Code::kShape, "--micro-batch-size is ", micro_batch_size,
               ", more than the ", share, " sequences of a data-parallel rank (--batch-size ",
               batch_size, ", --dp ", dp, ')');
}

void check_world(int tp, const std::vector<Factor>& factors) {
  const std::optional<Environment> environment = read_environment();
  if (!environment) return;
  std::string others;
  int64_t rest = 1;
  for (const auto& [flag, size] : factors) {
    rest *= size;
    if (size != 1 || flag == "--dp") others += str(others.empty() ? "" : " x ", flag, ' ', size);
  }
  CLEAVE_CHECK(environment->world_size % rest == 0, Code::kShape, others, " does not divide the ",
               environment->world_size, " ranks that the launcher started");
  if (tp == 0) return;
  const int64_t ranks = tp * rest;
  CLEAVE_CHECK(ranks == environment->world_size, Code::kShape, "--tp ", tp,
               others.empty() ? "" : " x ", others, " is ", ranks,
               " ranks, but the launcher started ", environment->world_size,
               "; make them equal, or omit --tp");
}

void check_launcher(int local_rank) {
  const std::optional<Environment> environment = read_environment();
  if (local_rank < 0) return;
  CLEAVE_CHECK(environment, Code::kShape, "--local-rank is ", local_rank,
               ", but no launcher started this process; omit it");
  check_local_rank(*environment, local_rank);
}

}  // namespace cleave::cli
