#include "cleave/report/metrics.h"

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/file/atomic_write.h"
#include "cleave/text/json.h"

namespace cleave::inline report {
namespace {

std::string line_of(const StepMetrics& metrics) {
  nlohmann::ordered_json object = {{"step", metrics.step},
                                   {"loss", metrics.loss},
                                   {"grad_norm", metrics.grad_norm},
                                   {"lr", metrics.lr},
                                   {"tokens", metrics.tokens},
                                   {"tokens_per_s", metrics.tokens_per_s},
                                   {"step_ms", metrics.step_ms},
                                   {"comm_ms", metrics.comm_ms},
                                   {"peak_rss_bytes", metrics.peak_rss_bytes},
                                   {"mfu", metrics.mfu}};
  if (metrics.aux_loss) object["aux_loss"] = *metrics.aux_loss;
  if (metrics.reward_margin) object["reward_margin"] = *metrics.reward_margin;
  if (metrics.reward_accuracy) object["reward_accuracy"] = *metrics.reward_accuracy;
  if (metrics.eval_loss) object["eval_loss"] = *metrics.eval_loss;
  if (metrics.eval_accuracy) object["eval_accuracy"] = *metrics.eval_accuracy;
  return object.dump() + '\n';
}

StepMetrics metrics_of(const Json& row) {
  StepMetrics metrics{.step = row.at("step").as_int(1),
                      .loss = row.number_or("loss", NAN),
                      .grad_norm = row.number_or("grad_norm", NAN),
                      .lr = row.number_or("lr", NAN),
                      .tokens = row.int_or("tokens", 0, 0),
                      .tokens_per_s = row.number_or("tokens_per_s", NAN),
                      .step_ms = row.number_or("step_ms", NAN),
                      .comm_ms = row.number_or("comm_ms", NAN),
                      .peak_rss_bytes = row.int_or("peak_rss_bytes", 0, 0),
                      .mfu = row.number_or("mfu", NAN)};
  if (row.has("aux_loss")) metrics.aux_loss = row.at("aux_loss").as_number();
  if (row.has("eval_loss")) metrics.eval_loss = row.at("eval_loss").as_number();
  if (row.has("eval_accuracy")) metrics.eval_accuracy = row.at("eval_accuracy").as_number();
  if (row.has("reward_margin")) metrics.reward_margin = row.at("reward_margin").as_number();
  if (row.has("reward_accuracy")) metrics.reward_accuracy = row.at("reward_accuracy").as_number();
  return metrics;
}

// Calls `use` with each complete line and its metrics.
void for_each_line(const std::string& path,
                   const std::function<void(std::string_view, const StepMetrics&)>& use) {
  const std::string text = read_file(path);
  std::string_view rest = text;
  int64_t last_step = 0;
  for (int number = 1; rest.find('\n') != std::string_view::npos; ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n') + 1);
    rest.remove_prefix(line.size());
    const StepMetrics metrics = metrics_of(Json::parse(line, str(path, ':', number)));
    CLEAVE_CHECK(metrics.step > last_step, Code::kFormat, path, ':', number, ": step ",
                 metrics.step, " follows step ", last_step, "; expected ascending steps");
    last_step = metrics.step;
    use(line, metrics);
  }
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path, int64_t keep_through) {
  std::string kept;
  if (std::filesystem::exists(path)) {
    for_each_line(path, [&](std::string_view line, const StepMetrics& metrics) {
      if (metrics.step <= keep_through) kept += line;
    });
  }
  write_atomic(path, std::string_view(kept));
  file_ = File::open_write(path);
  size_ = kept.size();
}

void MetricsWriter::append(const StepMetrics& metrics) {
  const std::string line = line_of(metrics);
  file_.write_at(size_, std::as_bytes(std::span(line)));
  size_ += line.size();
}

std::vector<StepMetrics> read_metrics(const std::string& path) {
  std::vector<StepMetrics> all;
  for_each_line(
      path, [&](std::string_view /*line*/, const StepMetrics& metrics) { all.push_back(metrics); });
  return all;
}

}  // namespace cleave::inline report
