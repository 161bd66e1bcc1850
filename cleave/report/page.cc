#include "cleave/report/page.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sys/stat.h>
#include <utility>

#include "cleave/base/byte_count.h"
#include "cleave/base/error.h"
#include "cleave/base/median.h"
#include "cleave/base/progress.h"
#include "cleave/file/atomic_write.h"
#include "cleave/report/page_template.h"
#include "cleave/report/record.h"
#include "cleave/report/table.h"

namespace cleave::inline report {
namespace {

namespace fs = std::filesystem;
using Object = nlohmann::ordered_json;
using Rows = std::vector<StepMetrics>;

/// One value of a step; NaN if it is not known.
struct Column {
  const char* key;
  double (*value)(const StepMetrics&);
};

double resident(const StepMetrics& m) {
  return m.peak_rss_bytes > 0 ? static_cast<double>(m.peak_rss_bytes) : NAN;
}

constexpr Column kTrainColumns[] = {
    {"loss", [](const StepMetrics& m) { return m.loss; }},
    {"lr", [](const StepMetrics& m) { return m.lr; }},
    {"grad_norm", [](const StepMetrics& m) { return m.grad_norm; }},
    {"tokens_per_s", [](const StepMetrics& m) { return m.tokens_per_s; }},
    {"step_ms", [](const StepMetrics& m) { return m.step_ms; }},
    {"comm_ms", [](const StepMetrics& m) { return m.comm_ms; }},
    {"peak_rss_bytes", resident},
    {"reward_margin", [](const StepMetrics& m) { return m.reward_margin.value_or(NAN); }},
    {"reward_accuracy", [](const StepMetrics& m) { return m.reward_accuracy.value_or(NAN); }},
};
constexpr Column kEvalColumns[] = {
    {"eval_loss", [](const StepMetrics& m) { return m.eval_loss.value_or(NAN); }},
    {"eval_accuracy", [](const StepMetrics& m) { return m.eval_accuracy.value_or(NAN); }},
};

/// The values with seven digits, as many as an fp32 has: more would only make the page larger.
Object numbers(const std::vector<double>& values) {
  Object array = Object::array();
  for (const double value : values) array.push_back(rounded_to(value, 7));  // NaN becomes null
  return array;
}

/// The columns over at most `most` buckets of steps: {"first": [1, 11], "last": [10, 20], "loss":
/// {"mean": [..], "low": [..], "high": [..]}}. Without "first", "low" and "high", each bucket is
/// one step.
Object curves_json(const Rows& rows, std::span<const Column> columns, size_t most) {
  const std::vector<size_t> begins = buckets(rows.size(), most);
  const bool is_whole = begins.size() == rows.size() + 1;
  Object first = Object::array();
  Object last = Object::array();
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    first.push_back(rows[begins[i]].step);
    last.push_back(rows[begins[i + 1] - 1].step);
  }
  Object table = {{"last", last}};
  if (!is_whole) table["first"] = first;
  for (const auto& [key, value] : columns) {
    std::vector<double> values;
    for (const StepMetrics& row : rows) values.push_back(value(row));
    const Curve curve = decimated(values, begins);
    Object& object = table[key] = {{"mean", numbers(curve.mean)}};
    if (is_whole) continue;
    object["low"] = numbers(curve.low);
    object["high"] = numbers(curve.high);
  }
  return table;
}

Object run_json(const ReportRun& run, size_t most) {
  Rows evals;
  for (const StepMetrics& row : run.metrics) {
    if (row.eval_loss || row.eval_accuracy) evals.push_back(row);
  }
  return {{"name", run.name},
          {"train", curves_json(run.metrics, kTrainColumns, most)},
          {"eval", curves_json(evals, kEvalColumns, most)}};
}

/// The data of the charts, without a '<' that could end the script element.
std::string data_json(const std::vector<ReportRun>& runs) {
  constexpr size_t kMostBuckets = 800, kLeastBuckets = 100;  // of a page; of a run
  Object all = Object::array();
  for (const ReportRun& run : runs) {
    all.push_back(run_json(run, std::max(kMostBuckets / runs.size(), kLeastBuckets)));
  }
  const Object data = {{"runs", all}};
  std::string text;
  for (const char c : data.dump(-1, ' ', true, Object::error_handler_t::replace)) {
    text += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return text;
}

/// The median of the finite values; NAN without any.
double median_of(const Rows& rows, double (*value)(const StepMetrics&)) {
  std::vector<double> values;
  for (const StepMetrics& row : rows) {
    if (std::isfinite(value(row))) values.push_back(value(row));
  }
  return values.empty() ? NAN : median(std::move(values));
}

/// `name` of a value since the run's last start, with the step where a resumed run continued.
std::string since_start(const std::string& name, const ReportRun& run) {
  const int64_t first = run.record.first_step;
  return first > 1 ? str(name, " from step ", first, " on") : name;
}

/// Where the time since the last start went.
NamesAndSeconds run_time(const ReportRun& run) {
  double steps_s = 0;
  double comm_s = 0;
  for (const StepMetrics& row : run.metrics) {
    if (row.step < run.record.first_step) continue;
    if (std::isfinite(row.step_ms)) steps_s += row.step_ms / 1000;
    if (std::isfinite(row.comm_ms)) comm_s += row.comm_ms / 1000;
  }
  NamesAndSeconds parts = {{"computing", std::max(steps_s - comm_s, 0.0)}, {"collectives", comm_s}};
  parts.insert(parts.end(), run.record.other_time.begin(), run.record.other_time.end());
  return parts;
}

double total(const RankMemory& rank) {
  double sum = 0;
  for (const auto& [name, bytes] : rank.bytes) sum += static_cast<double>(bytes);
  return sum;
}

/// The final numbers of a run; "" for those that are not known.
NamesAndValues final_numbers(const ReportRun& run) {
  NamesAndValues all;
  const auto add = [&](const std::string& name, double value, const auto& text) {
    all.emplace_back(name, std::isfinite(value) ? text(value) : "");
  };
  const auto digits = [](double value) { return fixed_text(value, 4); };
  const auto percent = [](double share) { return fixed_text(share * 100, 1) + " %"; };
  const auto size = [](double bytes) { return bytes_text(bytes); };
  const StepMetrics none;
  const StepMetrics& last = run.metrics.empty() ? none : run.metrics.back();
  StepMetrics eval;
  double tensors = NAN;
  for (const StepMetrics& row : run.metrics) {
    if (row.eval_loss || row.eval_accuracy) eval = row;
  }
  for (const RankMemory& rank : run.record.memory) tensors = std::fmax(tensors, total(rank));
  add("training loss", last.loss, digits);
  add("reward margin", last.reward_margin.value_or(NAN), digits);
  add("reward accuracy", last.reward_accuracy.value_or(NAN), percent);
  add("evaluation loss", eval.eval_loss.value_or(NAN), digits);
  add("evaluation accuracy", eval.eval_accuracy.value_or(NAN), percent);
  const int64_t planned = run.record.num_steps;
  all.emplace_back("steps", last.step < planned ? str(last.step, " of ", planned) : str(last.step));
  all.emplace_back("tokens", count_text(static_cast<double>(last.tokens)));
  add("tokens/s, median", median_of(run.metrics, [](const auto& m) { return m.tokens_per_s; }),
      count_text);
  add("step time, median", median_of(run.metrics, [](const auto& m) { return m.step_ms / 1000; }),
      duration_text);
  add("MFU, median", median_of(run.metrics, [](const auto& m) { return m.mfu; }), percent);
  add("tensor memory, peak of a rank", tensors, size);
  add("resident memory, peak", resident(last), size);
  add(since_start("wall time", run), run.record.wall_s > 0 ? run.record.wall_s : NAN,
      duration_text);
  return all;
}

std::string outcome(const ReportRun& run) {
  if (!run.record.outcome.empty()) return run.record.outcome;
  const int64_t done = run.metrics.empty() ? 0 : run.metrics.back().step;
  return str("not ended: step ", done, " of ", run.record.num_steps, ", written at ", run.written);
}

std::string value_of(const NamesAndValues& values, const std::string& name) {
  const auto at = std::find_if(values.begin(), values.end(),
                               [&](const auto& each) { return each.first == name; });
  return at == values.end() ? "" : at->second;
}

/// One column per run. Rows in which all values are the same are left out unless `keeps_same`, and
/// rows without a value.
Table comparison(const std::vector<ReportRun>& runs, const std::vector<NamesAndValues>& columns,
                 bool keeps_same) {
  Table table = {Row{{""}}};
  for (const ReportRun& run : runs) table[0].push_back({run.name});
  std::vector<std::string> names;
  for (const NamesAndValues& column : columns) {
    for (const auto& [name, value] : column) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  for (const std::string& name : names) {
    Row row = {Cell{name}};
    for (const NamesAndValues& column : columns) row.push_back({value_of(column, name)});
    const bool is_same = std::all_of(row.begin() + 1, row.end(),
                                     [&](const Cell& cell) { return cell.text == row[1].text; });
    if (!is_same || (keeps_same && !row[1].text.empty())) table.push_back(std::move(row));
  }
  return table;
}

std::string top(const std::vector<ReportRun>& runs, const std::string& title) {
  std::string html = "<h1>" + escaped_html(title) + "</h1>\n";
  if (runs.size() == 1) {
    html += "<p class=\"outcome\">" + escaped_html(runs[0].name + ": " + outcome(runs[0])) +
            "</p>\n<dl class=\"tiles\">";
    for (const auto& [name, value] : final_numbers(runs[0])) {
      if (value.empty()) continue;
      html += "<div><dt>" + escaped_html(name) + "</dt><dd>" + escaped_html(value) + "</dd></div>";
    }
    return html + "</dl>\n";
  }
  std::vector<NamesAndValues> columns;
  for (const ReportRun& run : runs) {
    columns.push_back(final_numbers(run));
    columns.back().insert(columns.back().begin(), {"outcome", outcome(run)});
  }
  return html + section("Final numbers", table_html(comparison(runs, columns, true)));
}

double total(const NamesAndSeconds& parts) {
  double sum = 0;
  for (const auto& [name, seconds] : parts) sum += seconds;
  return sum;
}

/// A column of forecasts: its title and the times, if there are any.
struct ForecastColumn {
  std::string title{};
  NamesAndSeconds parts{};
};

/// Times with their shares, and with a column of forecasts.
std::string time_table(const std::string& title, const NamesAndSeconds& parts,
                       const ForecastColumn& forecast) {
  const double sum = total(parts);
  if (sum <= 0) return "";
  Table table = {Row{{title}, {"time"}, {"share"}}};
  for (const auto& [name, seconds] : parts) {
    if (seconds <= 0) continue;
    const double share = seconds / sum;
    table.push_back(
        Row{{name}, {duration_text(seconds)}, {fixed_text(share * 100, 1) + " %", share}});
  }
  table.push_back(Row{{"total"}, {duration_text(sum)}, {""}});
  if (forecast.parts.empty()) return table_html(table);
  std::map<std::string, double> forecasts(forecast.parts.begin(), forecast.parts.end());
  forecasts["total"] = total(forecast.parts);
  table[0].push_back({forecast.title});
  for (size_t i = 1; i < table.size(); ++i) {
    const auto found = forecasts.find(table[i][0].text);
    table[i].push_back({found == forecasts.end() ? "" : duration_text(found->second)});
  }
  return table_html(table);
}

std::string time_section(const ReportRun& run) {
  const bool is_on_gpu = std::any_of(
      run.record.settings.begin(), run.record.settings.end(),
      [](const auto& setting) { return setting.first == "device" && setting.second != "cpu"; });
  const std::string html =
      time_table(since_start("the run", run), run_time(run), {}) +
      time_table("a step of rank 0", run.record.step_time,
                 {.title = is_on_gpu ? "at least" : "forecast", .parts = run.record.step_forecast});
  if (html.empty()) return "";
  return section(
      "Time", html,
      str("Collectives: operations that all ranks of a group call; their time includes "
          "the wait for the slowest rank. The run's times are means over all ranks. "
          "The step is the mean of the steps that rank 0 "
          "measured by kind. The forecast is the counted work and messages, at the "
          "speeds that were measured when the run started",
          is_on_gpu ? "; on GPUs only products, attention and messages have a time." : "."));
}

std::string memory_section(const std::vector<RankMemory>& ranks) {
  if (ranks.empty()) return "";
  double most = 0;
  for (const RankMemory& rank : ranks) most = std::max(most, total(rank));
  Table table = {Row{{"rank"}}};
  for (const auto& [name, bytes] : ranks[0].bytes) table[0].push_back({name});
  for (const char* name : {"total", "forecast"}) table[0].push_back({name});
  for (const RankMemory& rank : ranks) {
    Row row = {Cell{rank.rank}};
    for (const auto& [name, bytes] : rank.bytes) {
      const auto size = static_cast<double>(bytes);
      row.push_back({bytes_text(size), most > 0 ? size / most : NAN});
    }
    row.push_back({bytes_text(total(rank))});
    const auto forecast = static_cast<double>(rank.forecast);
    row.push_back({rank.forecast > 0 ? bytes_text(forecast) : ""});
    table.push_back(std::move(row));
  }
  return section("Tensor memory", table_html(table),
                 "The tensors of each rank at the peak of its first two steps. The resident memory "
                 "of a process is larger: it also holds the program, its libraries, and freed "
                 "memory that is kept for reuse. Ranks that are threads share one process.");
}

std::string checkpoint_section(const std::vector<ReportCheckpoint>& checkpoints) {
  if (checkpoints.empty()) return "";
  Table table = {Row{{"folder"}, {"size"}}};
  for (const ReportCheckpoint& each : checkpoints) {
    table.push_back(Row{{each.name}, {bytes_text(each.bytes)}});
  }
  return section("Checkpoints", table_html(table));
}

std::string settings_section(const std::vector<ReportRun>& runs) {
  const bool is_one = runs.size() == 1;
  std::vector<NamesAndValues> columns;
  columns.reserve(runs.size());
  for (const ReportRun& run : runs) columns.push_back(run.record.settings);
  Table table = comparison(runs, columns, is_one);
  if (is_one) table[0] = Row{{"setting"}, {"value"}};
  if (table.size() == 1) return "";
  return section(is_one ? "Settings" : "Settings that differ", table_html(table));
}

// A running cleave train may remove old checkpoints meanwhile: what is gone counts as nothing.
int64_t bytes_in(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code problem;
  for (fs::directory_iterator at(folder, problem), end; at != end; at.increment(problem)) {
    const uintmax_t size = at->is_regular_file(problem) ? at->file_size(problem) : 0;
    if (!problem) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

std::vector<ReportCheckpoint> checkpoints_in(const fs::path& run) {
  std::vector<ReportCheckpoint> all;
  std::error_code problem;
  for (fs::directory_iterator at(run, problem), end; at != end; at.increment(problem)) {
    const std::string name = at->path().filename().string();
    // "step_00000200.partial" and the like are not finished or not part of the run.
    const bool is_finished = name.starts_with("step_") && name.find('.') == std::string::npos;
    if (is_finished) all.push_back({.name = name, .bytes = bytes_in(at->path())});
  }
  CLEAVE_CHECK(!problem, Code::kIo, run.string(), ": ", problem.message());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

/// Removes the folder that holds all of the runs from their names.
void shorten_names(std::vector<ReportRun>& runs) {
  std::string folder = runs[0].name;
  const auto is_inside = [&](const ReportRun& run) {
    return run.name.starts_with(folder) && run.name != folder;
  };
  do {
    const size_t end = folder.substr(0, folder.size() - 1).rfind('/');
    if (folder.empty() || end == std::string::npos) return;
    folder.resize(end + 1);
  } while (!std::all_of(runs.begin(), runs.end(), is_inside));
  for (ReportRun& run : runs) run.name.erase(0, folder.size());
}

/// The template with its places "{{NAME}}" filled in, in this order.
std::string filled(std::string_view page, const NamesAndValues& values) {
  std::string html;
  for (const auto& [name, value] : values) {
    const std::string place = "{{" + name + "}}";
    const size_t at = page.find(place);
    if (at == std::string_view::npos) CLEAVE_BUG("the page has no ", place);
    html.append(page.substr(0, at)).append(value);
    page.remove_prefix(at + place.size());
  }
  return html.append(page);
}

}  // namespace

ReportRun read_run(const std::string& folder) {
  ReportRun run{.name = folder, .record = read_record(folder)};
  while (run.name.size() > 1 && run.name.ends_with('/')) run.name.pop_back();
  const std::string metrics = (fs::path(folder) / kMetricsName).string();
  run.metrics = read_metrics(metrics);
  struct stat status {};
  if (stat(metrics.c_str(), &status) == 0) run.written = utc_text(status.st_mtime);
  run.checkpoints = checkpoints_in(folder);
  return run;
}

std::string report_page(const std::vector<ReportRun>& runs) {
  if (runs.empty()) CLEAVE_BUG("a page of no runs");
  const bool is_one = runs.size() == 1;
  const std::string title = is_one ? runs[0].record.title : str(runs.size(), " runs compared");
  std::string details;
  if (is_one) {
    details = time_section(runs[0]) + memory_section(runs[0].record.memory) +
              checkpoint_section(runs[0].checkpoints);
  }
  return filled(kPageTemplate, {{"TITLE", escaped_html(title)},
                                {"TOP", top(runs, title)},
                                {"DETAILS", details + settings_section(runs)},
                                {"DATA", data_json(runs)}});
}

void write_report(const std::vector<std::string>& folders, const std::string& path) {
  std::vector<ReportRun> runs;
  runs.reserve(folders.size());
  for (const std::string& folder : folders) runs.push_back(read_run(folder));
  if (runs.size() > 1) shorten_names(runs);
  write_atomic(path, std::string_view(report_page(runs)));
}

}  // namespace cleave::inline report
