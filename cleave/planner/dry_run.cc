#include "cleave/planner/dry_run.h"

#include <iomanip>
#include <nlohmann/json.hpp>

#include "cleave/base/byte_count.h"
#include "cleave/base/log.h"
#include "cleave/base/progress.h"

namespace cleave::inline planner {
namespace {

using Object = nlohmann::ordered_json;

std::string filled(const std::string& text, int width) {
  return str(std::left, std::setw(width), text);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t length : shape) out += str(out.empty() ? "" : " x ", length);
  return out.empty() ? "1" : out;
}

int64_t elements_held(const RankProgram& program) {
  int64_t sum = 0;
  for (const RankParameter& p : program.parameters) sum += p.held;
  return sum;
}

}  // namespace

void print_rank_program(const RankProgram& program, const ParallelConfig& layout,
                        const StepShape& step, int rank) {
  const MemoryForecast& m = program.forecast.memory;
  log_info("rank ", rank, " of ", layout.num_ranks(), ": pp ", program.place.pp, ", dp ",
           program.place.dp, ", tp ", program.place.tp);
  log_info("layout   ", layout.describe());
  log_info("step     ", counted(step.batch_size, "sequence"), " of ", step.seq_len,
           " tokens, micro-batches of ", step.micro_batch_size);
  if (!program.layers.empty()) {
    log_info("layers   ", program.layers.size(), ": ", program.layers.front(), " to ",
             program.layers.back());
  }
  log_info("weights  ", counted(program.parameters.size(), "parameter"), ", ",
           count_text(static_cast<double>(elements_held(program))), " elements held");
  log_info("memory   ", bytes_text(m.total()), ": weights ", bytes_text(m.weights), ", optimizer ",
           bytes_text(m.optimizer), ", gradients ", bytes_text(m.gradients), ", activations ",
           bytes_text(m.activations));
  log_info("sent in a step");
  bool sends = false;
  for (const auto& [axis, calls] : program.forecast.calls) {
    for (const auto& [kind, traffic] : calls) {
      log_info("  ", filled(axis, 18), filled(kind, 16), right_aligned(str(traffic.num_calls), 8),
               traffic.num_calls == 1 ? " call  " : " calls ",
               right_aligned(bytes_text(traffic.bytes), 12));
      sends = true;
    }
  }
  if (!sends) log_info("  nothing");
}

void print_rank_parameters(const RankProgram& program) {
  log_info("parameters: elements held, shape, name");
  for (const RankParameter& p : program.parameters) {
    log_info(right_aligned(str(p.held), 12), "  ", filled(shape_text(p.shape), 16), "  ", p.name);
  }
}

std::string rank_program_json(const RankProgram& program, const ParallelConfig& layout,
                              const StepShape& step, int rank) {
  const MemoryForecast& m = program.forecast.memory;
  Object out = {{"rank", rank},
                {"ranks", layout.num_ranks()},
                {"pp", program.place.pp},
                {"dp", program.place.dp},
                {"tp", program.place.tp},
                {"layout", layout.describe()},
                {"batch_size", step.batch_size},
                {"micro_batch_size", step.micro_batch_size},
                {"seq_len", step.seq_len},
                {"layers", program.layers},
                {"bytes", m.total()},
                {"weights", m.weights},
                {"optimizer", m.optimizer},
                {"gradients", m.gradients},
                {"activations", m.activations},
                {"elements", elements_held(program)}};
  out["parameters"] = Object::array();
  for (const RankParameter& p : program.parameters) {
    out["parameters"].push_back({{"name", p.name}, {"shape", p.shape}, {"held", p.held}});
  }
  out["sent"] = Object::object();
  for (const auto& [axis, calls] : program.forecast.calls) {
    for (const auto& [kind, traffic] : calls) {
      out["sent"][axis][kind] = {{"calls", traffic.num_calls}, {"bytes", traffic.bytes}};
    }
  }
  return out.dump();
}

}  // namespace cleave::inline planner
