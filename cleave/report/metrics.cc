#include "cleave/report/metrics.h"

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
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

/// The metrics of a line at `place`, which must be of a step after `last_step`.
StepMetrics metrics_in(std::string_view line, const std::string& place, int64_t last_step) {
  try {
    StepMetrics metrics = metrics_of(Json::parse(line, place));
    CLEAVE_CHECK(metrics.step > last_step, Code::kFormat, place, ": step ", metrics.step,
                 " follows step ", last_step, "; expected ascending steps");
    return metrics;
  } catch (const Error& error) {
    throw Error(error.code(),
                str(error.what(), "; remove that line: only the metrics of its step are lost"));
  }
}

/// Whether nothing is in the text but zeros, which a power failure leaves, and white space.
bool is_blank(std::string_view text) {
  constexpr std::string_view kBlanks("\0 \t\r\n", 5);
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

/// Calls `use` with each complete line and its metrics, until it returns false. Returns whether the
/// file then ends in blank lines, which are ignored.
bool for_each_line(const std::string& path,
                   const std::function<bool(std::string_view, const StepMetrics&)>& use) {
  const std::string text = read_file(path);
  const std::string_view all = text;
  const size_t end = all.rfind('\n') + 1;
  const std::string_view incomplete = all.substr(end);
  std::string_view rest = all.substr(0, end);
  int64_t last_step = 0;
  for (int number = 1; !is_blank(rest); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n') + 1);
    rest.remove_prefix(line.size());
    const StepMetrics metrics = metrics_in(line, str(path, ':', number), last_step);
    last_step = metrics.step;
    if (!use(line, metrics)) return false;
  }
  return !rest.empty() || (!incomplete.empty() && is_blank(incomplete));
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path, int64_t keep_through) {
  std::string kept;
  if (std::filesystem::exists(path)) {
    int64_t last_step = 0;
    const bool is_cut_off =
        for_each_line(path, [&](std::string_view line, const StepMetrics& metrics) {
          last_step = metrics.step;
          if (metrics.step <= keep_through) kept += line;
          return metrics.step < keep_through;
        });
    if (is_cut_off && last_step < keep_through) {
      log_warning(path, " ended in blank lines or zeros, as after a power failure; they were ",
                  "removed, and the metrics of the steps after ", last_step, " are lost");
    }
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
  (void)for_each_line(path, [&](std::string_view /*line*/, const StepMetrics& metrics) {
    all.push_back(metrics);
    return true;
  });
  return all;
}

}  // namespace cleave::inline report
