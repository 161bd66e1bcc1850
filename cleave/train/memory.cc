#include <algorithm>

#include "cleave/base/byte_count.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/planner/rank_layouts.h"
#include "cleave/train/setup.h"

namespace cleave::inline train {
namespace {

/// Whether the run may train an adapter instead: --lora needs weights to freeze.
bool can_train_adapter(const TrainSetup& setup) {
  const bool has_adapter = setup.layout.lora || (setup.folder && !setup.folder->adapter.empty());
  return setup.folder && !setup.resumes && !has_adapter && !setup.changes_task &&
         setup.layout.ep == 1 && setup.options.ema == 0;
}

/// Options with which the run fits; if there are none, options with an adapter with which it fits.
Saving saving_of(const TrainSetup& setup, Range ranks, int64_t available) {
  Saving all = find_saving(setup.config, setup.layout, setup.step, ranks, available);
  if (all.bytes <= available || !can_train_adapter(setup)) return all;
  for (const std::optional<QuantizedForm> form :
       {std::optional<QuantizedForm>(), std::optional(QuantizedForm::kInt8),
        std::optional(QuantizedForm::kNf4)}) {
    const LoraOptions lora{.base_form = form};
    ParallelConfig layout = setup.layout;
    layout.lora = lora;
    const Saving adapter = find_saving(setup.config, layout, setup.step, ranks, available);
    const bool is_possible = adapter.bytes > 0;  // 0: libtorch cannot run it
    if (!is_possible || adapter.bytes > available) continue;
    return {.flags = str("--lora ", lora.rank, form ? str(" --lora-base ", name(*form)) : "",
                         adapter.flags.empty() ? "" : " ", adapter.flags),
            .bytes = adapter.bytes};
  }
  return all;
}

/// What to do instead.
std::string remedy(const Saving& saving, int64_t available) {
  if (saving.bytes <= available) {
    return str("add ", saving.flags, ", which needs about ", bytes_text(saving.bytes));
  }
  const std::string smallest =
      saving.flags.empty()
          ? std::string("needs less")
          : str("fits: the smallest (", saving.flags, ") needs about ", bytes_text(saving.bytes));
  return str("no layout, --micro-batch-size, --recompute or --dtype ", smallest,
             "; choose a smaller model or --seq-len, or more hosts");
}

/// require_memory(); `left` says how much memory is left.
void require_bytes(const TrainSetup& setup, Range ranks, int64_t available,
                   const std::string& left) {
  constexpr double kForecastError = 0.1;
  const int64_t needed = bytes_of_ranks(*setup.planned, setup.layout, ranks);
  const double most = static_cast<double>(available) * (1 + kForecastError);
  if (static_cast<double>(needed) <= most) return;
  const Saving saving = saving_of(setup, ranks, available);
  std::string subject = str("the ", ranks.size(), " ranks on this host need");
  if (ranks.size() == 1) {
    subject = setup.layout.num_ranks() == 1 ? "the run needs" : str("rank ", ranks.begin, " needs");
  }
  throw Error(Code::kMemory,
              str(subject, " about ", bytes_text(needed), " of memory, and ", left, "; ",
                  remedy(saving, available), "; --over-commit starts it anyway"));
}

}  // namespace

Range ranks_of_host(const ParallelConfig& layout) {
  const auto environment = read_environment();
  if (!environment) return {0, layout.num_ranks()};
  const int count = environment->local_world_size;
  const int first =
      std::clamp(environment->rank - environment->local_rank, 0, environment->world_size - count);
  return {first, first + count};
}

void require_memory(const TrainSetup& setup, Range ranks, const AvailableMemory& available) {
  require_bytes(setup, ranks, available.bytes,
                available.is_of_cgroup ? str("the limit of the container or batch job leaves ",
                                             bytes_text(available.bytes))
                                       : str(bytes_text(available.bytes), " are available"));
}

void require_gpu_memory(const TrainSetup& setup, Range ranks, int64_t available) {
  require_bytes(setup, ranks, available, str("the GPU has ", bytes_text(available), " left"));
}

}  // namespace cleave::inline train
