#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave::cli {

/// Throws Error(kIo) naming flag and path unless `path` is a readable file.
void require_file(std::string_view flag, const std::string& path);
void require_files(std::string_view flag, const std::vector<std::string>& paths);

/// A model is a folder, or (where `takes_presets`) the name of a preset, which has no '/' in it.
/// Throws Error(kIo).
void require_model(const std::string& model, bool takes_presets);

/// "bytes" or a folder. Empty is fine: then the model says.
void require_tokenizer(const std::string& tokenizer);

/// Throws Error(kUsage) when folder `out` holds a run already, Error(kIo) when it is a file.
void refuse_used_folder(const std::string& out);

/// The sizes against the world that a launcher made, when it made one. 0 is "not given". Throws
/// Error(kShape).
void check_world(int tp, int dp, int pp = 1);

/// The launcher's variables make sense, and what torch.distributed.launch passes as --local-rank
/// (-1: not given) agrees with them. Throws Error(kUsage), Error(kShape).
void check_launcher(int local_rank);

/// Whether this process is the one that checks and reports for all.
bool is_first_rank();

}  // namespace cleave::cli
