#include "cleave/cli/check.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <unistd.h>

#include "cleave/base/error.h"

namespace cleave::cli {
namespace {

namespace fs = std::filesystem;

std::string reason(int number) {
  return std::generic_category().message(number);
}

// The first sign of a run in the folder; empty when there is none.
std::string run_sign(const fs::path& folder) {
  std::error_code problem;
  if (fs::exists(folder / "latest", problem)) return "latest";
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, problem)) {
    const std::string name = entry.path().filename();
    if (name == "metrics.jsonl" || name.starts_with("step_")) return name;
  }
  CLEAVE_CHECK(!problem, Code::kIo, "--out ", folder.string(), ": ", problem.message());
  return "";
}

}  // namespace

void require_file(std::string_view flag, const std::string& path) {
  std::error_code problem;
  CLEAVE_CHECK(!fs::is_directory(path, problem), Code::kIo, flag, ' ', path,
               ": is a folder; expected a file");
  CLEAVE_CHECK(access(path.c_str(), R_OK) == 0, Code::kIo, flag, ' ', path, ": ", reason(errno));
}

void require_files(std::string_view flag, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) require_file(flag, path);
}

void require_model(const std::string& model, bool takes_presets) {
  std::error_code problem;
  if (fs::is_directory(model, problem)) return;
  const bool is_name = model.find('/') == std::string::npos && !fs::exists(model, problem);
  if (takes_presets && is_name) return;
  CLEAVE_CHECK(!fs::exists(model, problem), Code::kIo, "--model ", model,
               ": is a file; expected the folder of a model or of a run");
  throw Error(Code::kIo, str("--model ", model, ": no such folder"));
}

void require_tokenizer(const std::string& tokenizer) {
  std::error_code problem;
  CLEAVE_CHECK(tokenizer.empty() || tokenizer == "bytes" || fs::is_directory(tokenizer, problem),
               Code::kIo, "--tokenizer ", tokenizer,
               ": no such folder; expected bytes or a folder with tokenizer files");
}

void refuse_used_folder(const std::string& out) {
  std::error_code problem;
  if (!fs::exists(out, problem)) return;
  CLEAVE_CHECK(fs::is_directory(out, problem), Code::kIo, "--out ", out,
               ": is a file; expected a folder");
  const std::string sign = run_sign(out);
  CLEAVE_CHECK(sign.empty(), Code::kUsage, "--out ", out, " holds a run already (", sign,
               "); continue it with --resume or choose another folder");
}

int launched(const char* name) {
  const char* text = getenv(name);
  return text == nullptr ? -1 : atoi(text);
}
void check_world(int tp, int dp) {
  const int w = launched("WORLD_SIZE");
  CLEAVE_CHECK(w <= 0 || tp == 0 || tp * dp == w, Code::kShape, "tp");
}
void check_local_rank(int local_rank) {
  const int w = launched("LOCAL_RANK");
  CLEAVE_CHECK(local_rank < 0 || w < 0 || local_rank == w, Code::kShape, "l");
}
bool is_first_rank() {
  return launched("RANK") <= 0;
}

}  // namespace cleave::cli
