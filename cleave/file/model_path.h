#pragma once
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/error.h"

namespace cleave::inline file {

/// Whether `name` is no existing path but has the form of a model on the Hugging Face Hub, ORG/NAME
/// ("Qwen/Qwen3-0.6B"). A name that ends as a model file does is a path.
bool is_hub_name(const std::string& name);

/// The folder of a model's main revision in the local Hugging Face cache, which is $HF_HUB_CACHE,
/// $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub, as in
/// huggingface_hub. Nothing is downloaded: if the model is not there, Error(kIo) names the command
/// that downloads it. `what` is the subject of the message.
std::filesystem::path hub_model(const std::string& name, std::string_view what = "model");

/// hub_model() if `given` is a hub name, otherwise `given`.
std::filesystem::path local_model(const std::string& given, std::string_view what = "model");

/// If `folder` is a model of the Hugging Face cache, whose download may have ended early: ";
/// download it with: " and the command, for the end of a message. Otherwise "".
std::string download_advice(const std::filesystem::path& folder);

/// The file of a run folder that names its newest checkpoint.
inline constexpr std::string_view kLatestName = "latest";

/// The name in that file, which people edit too: without blanks and line ends after it.
std::string read_latest(const std::filesystem::path& latest);

/// The newest checkpoint of a run folder, which its file `latest` names. Other folders are returned
/// unchanged: without `latest`, or with one that other programs write beside a config.json. Throws
/// Error(kFormat) if `latest` does not hold the name of a folder, Error(kIo) if there is no such
/// folder.
std::filesystem::path resolve_run_folder(const std::filesystem::path& folder);

/// The folders from which these models, adapters and tokenizers would be read now: of a run, its
/// newest checkpoint. Leaves out what is not a folder.
std::vector<std::string> folders_of(std::initializer_list<std::string> given);

/// If `error` may be due to it, and one of the folders is not there: throws Error(kIo) that says
/// that it was removed meanwhile.
void refuse_removed(const std::vector<std::string>& folders, const Error& error);

/// Calls `read`, which reads `folders`, and returns its result. If it fails because a run has
/// removed one of them (--keep-last), throws Error(kIo) that says so.
template <class Read>
auto read_from(const std::vector<std::string>& folders, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    refuse_removed(folders, error);
    throw;
  } catch (const std::filesystem::filesystem_error& error) {
    refuse_removed(folders, Error(Code::kIo, error.what()));
    throw;
  }
}

}  // namespace cleave::inline file
