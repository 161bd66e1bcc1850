#include "cleave/file/model_path.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/base/suggest.h"
#include "cleave/file/file.h"

namespace cleave::inline file {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLongestRevision = 256;  // a commit hash has 40 characters

/// The folder that a variable names; empty if it is not set.
fs::path folder_of(const char* variable) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): nobody sets it
  return value == nullptr ? fs::path() : fs::path(value);
}

fs::path hub_cache() {
  if (fs::path cache = folder_of("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (fs::path home = folder_of("HF_HOME"); !home.empty()) return home / "hub";
  fs::path cache = folder_of("XDG_CACHE_HOME");
  if (cache.empty()) cache = folder_of("HOME") / ".cache";
  return cache / "huggingface" / "hub";
}

bool is_hub_word(std::string_view word) {
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  };
  return is_file_name(word) && word.front() != '-' && std::all_of(word.begin(), word.end(), fits);
}

// The end of a message about a folder ORG/NAME that is not there. Where there is a folder ORG, a
// name in it may be misspelled: "out/mien".
std::string remedy_for_missing(const std::string& name) {
  std::vector<std::string> folders;
  std::error_code ignored;  // a folder that cannot be read has no names
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(name).parent_path(), ignored)) {
    if (entry.is_directory(ignored)) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  return did_you_mean(name, folders) + (folders.empty() ? "; " : "; or ") +
         "download it with: hf download " + name;
}

}  // namespace

bool is_hub_name(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos) return false;
  const std::string_view text = name;
  if (!is_hub_word(text.substr(0, slash)) || !is_hub_word(text.substr(slash + 1))) return false;
  constexpr std::string_view kFiles[] = {".json", ".gguf", ".safetensors", ".bin", ".pt", ".pth"};
  const std::string extension = fs::path(name).extension();
  if (std::find(std::begin(kFiles), std::end(kFiles), extension) != std::end(kFiles)) return false;
  std::error_code ignored;  // a path that cannot be accessed exists
  return fs::status(name, ignored).type() == fs::file_type::not_found;
}

fs::path local_model(const std::string& given, std::string_view what) {
  return is_hub_name(given) ? hub_model(given, what) : fs::path(given);
}

std::string download_advice(const fs::path& folder) {
  constexpr std::string_view kModels = "models--", kSlash = "--";
  const fs::path snapshots = folder.parent_path();
  const std::string model = snapshots.parent_path().filename();
  if (snapshots.filename() != "snapshots" || !model.starts_with(kModels)) return "";
  std::string name = model.substr(kModels.size());
  if (const size_t at = name.find(kSlash); at != std::string::npos) {
    name.replace(at, kSlash.size(), "/");
  }
  return "; download it with: hf download " + name;
}

fs::path hub_model(const std::string& name, std::string_view what) {
  const fs::path cache = hub_cache();
  const size_t slash = name.find('/');
  const fs::path model =
      cache / str("models--", name.substr(0, slash), "--", name.substr(slash + 1));
  const fs::path main = model / "refs" / "main";
  std::error_code ignored;  // a path that cannot be accessed, or is too long, does not exist
  const bool is_cached = fs::exists(main, ignored);
  const fs::path run = name.substr(0, slash);
  CLEAVE_CHECK(is_cached || !fs::exists(run / kLatestName, ignored), Code::kIo, what, ' ', name,
               ": no such folder in the run ", run.string(), "; give ", run.string(),
               " for its newest checkpoint");
  CLEAVE_CHECK(is_cached, Code::kIo, what, ' ', name,
               ": no such folder, and not in the Hugging Face cache ", cache.string(),
               remedy_for_missing(name));
  std::string revision = read_file(main, kLongestRevision);
  while (revision.ends_with('\n')) revision.pop_back();
  CLEAVE_CHECK(is_file_name(revision), Code::kFormat, main.string(),
               " does not hold the name of a revision; download it again with: hf download ", name);
  fs::path snapshot = model / "snapshots" / revision;
  CLEAVE_CHECK(fs::is_directory(snapshot, ignored), Code::kIo, what, ' ', name, ": ",
               snapshot.string(), " is not there; download it again with: hf download ", name);
  return snapshot;
}

namespace fs = std::filesystem;

std::string read_latest(const fs::path& latest) {
  constexpr uint64_t kMaxBytes = 4096;
  std::string name = read_file(latest, kMaxBytes);
  name.resize(name.find_last_not_of(" \t\r\n") + 1);
  return name;
}

fs::path resolve_run_folder(const fs::path& folder) {
  const fs::path latest = folder / kLatestName;
  std::error_code ignored;  // a file that cannot be accessed counts as missing
  if (!fs::exists(latest, ignored)) return folder;
  const std::string name = read_latest(latest);
  // A run folder has links to its checkpoint's files. DeepSpeed writes such a file, too.
  const bool is_run = name.starts_with("step_");
  if (!is_run && fs::exists(folder / "config.json", ignored)) return folder;
  CLEAVE_CHECK(is_file_name(name), Code::kFormat, latest.string(), " holds '", name,
               "'; expected the name of a checkpoint folder");
  if (fs::is_directory(folder / name, ignored)) return folder / name;
  // A run may have named a new checkpoint and removed this one since (--keep-last).
  if (read_latest(latest) != name) return resolve_run_folder(folder);
  throw Error(Code::kIo, str(latest.string(), " names ", name,
                             ", which is not there; restore it, or write the name of another "
                             "checkpoint there"));
}

std::vector<std::string> folders_of(std::initializer_list<std::string> given) {
  std::vector<std::string> found;
  for (const std::string& path : given) {
    try {
      const fs::path folder = resolve_run_folder(local_model(path));
      if (fs::is_directory(folder)) found.push_back(folder.string());
    } catch (const std::exception&) {  // the one who reads it says what is wrong
    }
  }
  return found;
}

void refuse_removed(const std::vector<std::string>& folders, const Error& error) {
  constexpr std::string_view kRemoved = " was removed while it was read";
  const bool may_be_due =
      error.code() == Code::kIo || error.code() == Code::kFormat || error.code() == Code::kUsage;
  const std::string_view what = error.what();
  if (!may_be_due || what.find(kRemoved) != std::string_view::npos) return;
  for (const std::string& folder : folders) {
    std::error_code problem;
    const bool is_gone = fs::status(folder, problem).type() == fs::file_type::not_found;
    if (!is_gone) continue;
    throw Error(Code::kIo,
                str(folder, kRemoved, ", as a run with --keep-last does with ",
                    "old checkpoints; give the command again (the error was: ", what, ")"));
  }
}

}  // namespace cleave::inline file
