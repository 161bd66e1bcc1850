#include "cleave/train/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <string_view>

#include "cleave/base/byte_count.h"
#include "cleave/base/progress.h"
#include "cleave/base/str.h"
#include "cleave/base/version.h"
#include "cleave/file/atomic_write.h"
#include "cleave/train/chart.h"
#include "cleave/train/report_style.h"

namespace cleave {
namespace {

using Value = double StepMetrics::*;

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return std::move(out).str();
}

Series series_of(const std::vector<StepMetrics>& metrics, Value value, const std::string& name) {
  Series series{.name = name};
  for (const StepMetrics& row : metrics) {
    series.x.push_back(static_cast<double>(row.step));
    series.y.push_back(row.*value);
  }
  return series;
}

bool has_values(const Series& series) {
  return std::any_of(series.y.begin(), series.y.end(), [](double y) { return std::isfinite(y); });
}

// The raw values, drawn faint, and a smoothed curve.
std::vector<Series> with_smooth(Series raw) {
  constexpr size_t kFewSteps = 40;     // fewer: only the raw curve
  constexpr size_t kSingleSteps = 12;  // at most: a dot at each value
  const size_t count = raw.y.size();
  raw.has_dots = count <= kSingleSteps;
  if (count < kFewSteps) return {raw};
  Series smooth = raw;
  smooth.y = smoothed(raw.y, std::clamp<size_t>(count / 60, 3, 200));
  raw.is_faint = true;
  return {raw, smooth};
}

Series eval_series(const std::vector<StepMetrics>& metrics) {
  Series series{.name = "eval", .color = 2, .has_dots = true};
  for (const StepMetrics& row : metrics) {
    if (!row.eval_loss) continue;
    series.x.push_back(static_cast<double>(row.step));
    series.y.push_back(*row.eval_loss);
  }
  return series;
}

std::string charts(const std::vector<StepMetrics>& metrics) {
  std::vector<Chart> all;
  Chart loss{.title = "Loss",
             .series = with_smooth(series_of(metrics, &StepMetrics::loss, "train"))};
  const Series eval = eval_series(metrics);
  if (!eval.y.empty()) loss.series.push_back(eval);
  all.push_back(loss);
  const auto add = [&](const char* title, Value value) {
    all.push_back({.title = title,
                   .from_zero = true,
                   .series = with_smooth(series_of(metrics, value, title))});
  };
  add("Tokens per second", &StepMetrics::tokens_per_s);
  add("Gradient norm", &StepMetrics::grad_norm);
  all.push_back({.title = "Learning rate",
                 .from_zero = true,
                 .series = {series_of(metrics, &StepMetrics::lr, "learning rate")}});
  std::string html = "<div class=\"grid\">";
  for (const Chart& chart : all) {
    if (has_values(chart.series.front())) html += chart_svg(chart);
  }
  return html + "</div>\n";
}

double median(const std::vector<StepMetrics>& metrics, Value value) {
  std::vector<double> values;
  for (const StepMetrics& row : metrics) {
    if (std::isfinite(row.*value)) values.push_back(row.*value);
  }
  if (values.empty()) return NAN;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string tile(const std::string& value, const std::string& name) {
  return "<div><b>" + escaped_html(value) + "</b><span>" + escaped_html(name) + "</span></div>";
}

std::string tiles(const ReportData& data) {
  std::string html;
  if (!data.metrics.empty()) {
    const StepMetrics& last = data.metrics.back();
    const Series eval = eval_series(data.metrics);
    const double rate = median(data.metrics, &StepMetrics::tokens_per_s);
    const double mfu = median(data.metrics, &StepMetrics::mfu);
    if (std::isfinite(last.loss)) html += tile(fixed(last.loss, 4), "training loss");
    if (!eval.y.empty()) html += tile(fixed(eval.y.back(), 4), "eval loss");
    html += tile(str(last.step), "steps");
    html += tile(count_text(static_cast<double>(last.tokens)), "tokens");
    if (std::isfinite(rate)) html += tile(count_text(rate), "tokens/s, median");
    if (std::isfinite(mfu)) html += tile(fixed(mfu * 100, 1) + " %", "MFU, median");
    if (last.peak_rss_bytes > 0) {
      html += tile(bytes_text(static_cast<double>(last.peak_rss_bytes)), "peak memory");
    }
  }
  if (data.wall_s > 0) html += tile(duration_text(data.wall_s), "wall time");
  return "<div class=\"tiles\">" + html + "</div>\n";
}

std::string section(const std::string& title, const std::string& body) {
  return "<section><h2>" + escaped_html(title) + "</h2>" + body + "</section>\n";
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<table>";
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string_view cell = i == 0 ? "th" : "td";
    html += "<tr>";
    for (const std::string& text : rows[i]) {
      html += str('<', cell, '>', escaped_html(text), "</", cell, '>');
    }
    html += "</tr>";
  }
  return html + "</table>";
}

std::string facts(const NamesAndValues& values) {
  std::string html = "<table class=\"facts\">";
  for (const auto& [name, value] : values) {
    html += "<tr><td>" + escaped_html(name) + "</td><td>" + escaped_html(value) + "</td></tr>";
  }
  return html + "</table>";
}

/// A bar of times with their percentages; without parts if the sum is 0.
Bar time_bar(const std::string& label, const std::vector<TimePart>& parts) {
  double sum = 0;
  for (const auto& [name, seconds] : parts) sum += seconds;
  if (sum <= 0) return {};
  Bar bar{label, {}};
  for (const auto& [name, seconds] : parts) {
    const std::string share = fixed(seconds / sum * 100, 1) + " %";
    bar.parts.push_back({name, seconds, duration_text(seconds) + " (" + share + ")"});
  }
  bar.total = duration_text(sum);
  return bar;
}

std::string memory_section(const std::vector<RankMemory>& memory) {
  std::vector<Bar> bars;
  for (const RankMemory& rank : memory) {
    Bar bar{rank.rank, {}};
    double sum = 0;
    for (const auto& [name, bytes] : rank.bytes) {
      const auto size = static_cast<double>(bytes);
      bar.parts.push_back({name, size, bytes_text(size)});
      sum += size;
    }
    bar.total = bytes_text(sum);
    if (rank.planned > 0) {
      bar.total += " (forecast " + bytes_text(static_cast<double>(rank.planned)) + ")";
    }
    bars.push_back(std::move(bar));
  }
  return bars.empty() ? "" : section("Memory per rank", bars_html(bars));
}

std::string time_section(const ReportData& data) {
  double steps_s = 0;
  double comm_s = 0;
  for (const StepMetrics& row : data.metrics) {
    if (std::isfinite(row.step_ms)) steps_s += row.step_ms / 1000;
    if (std::isfinite(row.comm_ms)) comm_s += row.comm_ms / 1000;
  }
  std::vector<TimePart> parts = {{"computing", std::max(steps_s - comm_s, 0.0)},
                                 {"communicating", comm_s}};
  parts.insert(parts.end(), data.other_time.begin(), data.other_time.end());
  std::string bars;
  for (const Bar& bar : {time_bar("time", parts), time_bar("per step", data.step_time)}) {
    if (!bar.parts.empty()) bars += bars_html({bar});
  }
  return bars.empty() ? "" : section("Time", bars);
}

std::string checkpoint_section(const std::vector<ReportCheckpoint>& checkpoints) {
  if (checkpoints.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"step", "folder", "size"}};
  for (const ReportCheckpoint& each : checkpoints) {
    rows.push_back({str(each.step), each.path, bytes_text(static_cast<double>(each.bytes))});
  }
  return section("Checkpoints", table(rows));
}

std::string sample_section(const ReportData& data) {
  if (data.sample_text.empty()) return "";
  return section("Sample", "<pre><b>" + escaped_html(data.sample_prompt) + "</b>" +
                               escaped_html(data.sample_text) + "</pre>");
}

std::string grid(const std::string& sections) {
  return sections.empty() ? "" : "<div class=\"grid\">" + sections + "</div>\n";
}

}  // namespace

std::string report_html(const ReportData& data) {
  std::string details;
  if (data.layout.size() > 1) details += section("Layout", table(data.layout));
  details += checkpoint_section(data.checkpoints);
  if (!data.model.empty()) details += section("Model", facts(data.model));
  if (!data.machine.empty()) details += section("Machine", facts(data.machine));

  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>" +
      escaped_html(data.title) + "</title>\n<style>" + kReportStyle +
      "</style></head>\n<body><main>\n<h1>" + escaped_html(data.title) +
      "</h1>\n<p class=\"outcome\">" + escaped_html(data.outcome) + "</p>\n";
  html += tiles(data);
  html += charts(data.metrics);
  html += grid(memory_section(data.memory) + time_section(data));
  html += sample_section(data);
  html += grid(details);
  if (!data.command.empty()) {
    html += section("Command", "<pre>" + escaped_html(data.command) + "</pre>");
  }
  return html + "<footer>cleave " + std::string(version()) + "</footer>\n</main></body></html>\n";
}

void write_report(const std::string& path, const ReportData& data) {
  write_atomic(path, std::string_view(report_html(data)));
}

}  // namespace cleave
