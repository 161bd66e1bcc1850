#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::cli {

/// Throws Error(kIo) naming flag and path unless `path` is a readable file.
void require_file(std::string_view flag, const std::string& path);
void require_files(std::string_view flag, const std::vector<std::string>& paths);

/// Prints on stderr that the command reads stdin, if that is a terminal: otherwise it would seem to
/// hang.
void announce_stdin();

/// Throws Error(kIo) if `folder` is that of a run before its first checkpoint, and says how far the
/// run is and when it saves.
void require_checkpoint(const std::string& folder);

/// Throws Error(kIo) naming the flag unless `model` is a folder with a model or, with
/// `takes_presets`, a config.json or the name of a preset (without '/').
void require_model(std::string_view flag, const std::string& model, bool takes_presets);

/// Throws Error(kIo) unless `adapter` is a folder with a checkpoint if it is that of a run, a model
/// of the Hugging Face cache, or empty.
void require_adapter(const std::string& adapter);

/// Throws Error(kIo) unless `tokenizer` is "bytes", a folder, a GGUF file, a model of the Hugging
/// Face cache, or empty (the model's).
void require_tokenizer(const std::string& tokenizer);

/// Throws Error(kIo) unless `chat_template` is "chatml", a file, or empty (the tokenizer's).
void require_chat_template(const std::string& chat_template);

/// Throws Error(kIo) if `out` is a file or would be in one, Error(kUsage) if it is the folder of a
/// checkpoint or of another model. It need not exist.
void require_run_folder(const std::string& out);

/// Throws Error(kUsage) if folder `out` holds files, but none that a run writes: --resume would
/// start a new run among them. The folder need not exist.
void refuse_foreign_folder(const std::string& out);

/// Throws Error(kUsage) if folder `out` holds a checkpoint of a run.
void refuse_used_folder(const std::string& out);

/// The note in a run's folder that a job's first start was refused because the folder is used.
/// torchrun starts a refused command again; as a restart it would resume the run that it must not
/// touch. Other launchers do not, and leave no note.
class RefusedStart {
 public:
  /// `out`: the run's folder; `command`: the command line of this start.
  RefusedStart(const std::string& out, const std::string& command);
  void note() const;    ///< after the first start was refused
  void forget() const;  ///< after a first start was not refused
  [[nodiscard]] bool is_of_this_job() const;

 private:
  std::filesystem::path path_;
  std::string job_;  // "" without torchrun
};

/// Throws Error(kShape) if a batch has no sequence for one of the `dp` ranks, or a micro-batch more
/// than the share of a rank (0: not given).
void check_batch(int64_t batch_size, int64_t micro_batch_size, int dp);

/// A flag with the size of an axis: {"--dp", 2}.
struct Factor {
  std::string_view flag;
  int size = 1;
};

/// Throws Error(kShape) unless tp times the sizes is the launcher's world, if there is a launcher.
/// tp 0 is "not given". Messages leave out sizes of 1, but for --dp.
void check_world(int tp, const std::vector<Factor>& factors);

/// Checks the launcher's variables, and that --local-rank of torch.distributed.launch (-1: not
/// given) matches them. Throws Error(kUsage), Error(kShape).
void check_launcher(int local_rank);

}  // namespace cleave::cli
