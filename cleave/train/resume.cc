#include "cleave/train/resume.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline train {
namespace {

using option::OnResume;
using option::Row;

/// The options that are saved.
std::vector<Row> compared(TrainOptions& options) {
  std::vector<Row> found;
  for (const option::Section& section : option::sections(options)) {
    for (const Row& row : section.rows) {
      if (row.on_resume.kind != OnResume::kIgnore) found.push_back(row);
    }
  }
  return found;
}

/// The key of an option in a checkpoint's state.
std::string key_of(const Row& row) {
  std::string key = row.name;
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

/// A saved value as option::text_of() writes it.
std::string saved_text(const Json& value) {
  if (value.is(Json::Type::kBool)) return value.as_bool() ? "on" : "off";
  if (value.is(Json::Type::kString)) return value.as_string();
  std::string text = value.dump();
  if (text.find_first_of(".eE") == std::string::npos) return text;  // a seed has 64 bits
  double number = value.as_number();
  return option::text_of(&number);
}

}  // namespace

RunState::RunState(const TrainSetup& setup)
    : model_name(setup.options.model),
      loss_scale(setup.layout.compute_type == at::kHalf),
      early_stop(setup.options.early_stop) {}

std::string RunState::json(const TrainSetup& setup, const Mesh& mesh) const {
  nlohmann::ordered_json state;
  state["model"] = model_name;
  state["step"] = step;
  state["tokens"] = tokens;
  save_options(state, setup.options);
  // Unpacked rows of ids have their own lengths.
  const bool has_length = setup.data->is_text() || setup.options.packing;
  if (has_length) state["seq_len"] = setup.options.seq_len;
  state["data"] = to_hex(setup.data->fingerprint());
  if (loss_scale.is_on()) {
    state["loss_scale"] = loss_scale.value();
    state["good_steps"] = loss_scale.num_good_steps();
  }
  const EarlyStop::State& best = early_stop.state();
  if (best.best_step >= 0) {
    state["best_step"] = best.best_step;
    state["best_loss"] = best.best_loss;
  }
  if (best.best_step >= 0 || best.num_worse > 0) state["worse_evaluations"] = best.num_worse;
  // Without evaluations now, the best one so far stays that of the data before.
  const std::string evaluated =
      setup.eval_data ? to_hex(setup.eval_data->fingerprint()) : eval_data;
  if (!evaluated.empty()) state["eval_data"] = evaluated;
  if (evaluation_is_pending) state["evaluation_is_pending"] = true;
  if (setup.layout.lora) {
    state["base"] = setup.base_fingerprint;
    state["lora_base"] = base_name(setup.layout.lora->base_form);
  }
  state["gemm"] = std::string(name(gemm()));
  state["mesh"] = mesh.describe();
  state["tp"] = setup.layout.tp;
  state["command"] = setup.options.command;
  // Paths may hold any bytes.
  return state.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void RunState::restore(const Json& state, const std::string& out) {
  model_name = state.string_or("model", out);
  step = state.at("step").as_int(0);
  tokens = state.at("tokens").as_int(0);
  if (state.has("loss_scale")) {
    loss_scale.restore(state.at("loss_scale").as_number(), state.at("good_steps").as_int(0));
  }
  evaluation_is_pending = state.bool_or("evaluation_is_pending", false);
  eval_data = state.string_or("eval_data", "");
  // Also without --early-stop now: the best checkpoint stays.
  if (!state.has("worse_evaluations")) return;
  EarlyStop::State best{.num_worse = state.at("worse_evaluations").as_int(0)};
  if (state.has("best_step")) {  // no loss was finite yet otherwise
    best.best_step = state.at("best_step").as_int(0);
    best.best_loss = state.at("best_loss").as_number();
  }
  early_stop.restore(best);
}

void save_options(nlohmann::ordered_json& state, TrainOptions options) {
  for (const Row& row : compared(options)) {
    std::visit(
        [&](const auto* value) {
          using Value = std::remove_cvref_t<decltype(*value)>;
          if constexpr (std::is_arithmetic_v<Value> || std::is_same_v<Value, std::string>) {
            state[key_of(row)] = *value;
          } else {
            CLEAVE_BUG("--", row.name, " is no number, switch or text; it cannot be saved");
          }
        },
        row.target);
  }
}

std::vector<std::string> check_resumed(const Json& state, TrainOptions options) {
  std::vector<std::string> warnings;
  TrainOptions defaults;
  const std::vector<Row> rows = compared(options), unset = compared(defaults);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const OnResume& rule = row.on_resume;
    const bool is_switch = std::holds_alternative<bool*>(row.target);
    // A run from before texts were saved; its optimizer shows in its files.
    const bool is_text = std::holds_alternative<std::string*>(row.target);
    if (is_text && !state.has(key_of(row))) continue;
    // A run from before there was this option trained as its default does.
    const std::string before = state.has(key_of(row)) ? saved_text(state.at(key_of(row)))
                                                      : option::text_of(unset[i].target);
    const std::string now = option::text_of(row.target);
    if (before == now) continue;
    const std::string was =
        str("the run in ", options.out, " was started with ",
            is_switch && before == "off" ? "--no-" : "--", row.name, is_switch ? "" : " " + before);
    CLEAVE_CHECK(rule.kind != OnResume::kRefuse, Code::kUsage, was,
                 "; give the same value to resume it");
    warnings.push_back(str(was, is_switch ? "" : ", now " + now, ": ", rule.consequence));
  }
  return warnings;
}

}  // namespace cleave::inline train
