#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cleave/base/byte_count.h"
#include "cleave/base/log.h"
#include "cleave/planner/cluster_command.h"
#include "cleave/planner/published_runs.h"

namespace cleave::inline planner {
namespace {

using Object = nlohmann::ordered_json;
constexpr double kGiB = 1024.0 * 1024 * 1024;

/// Relative errors of one kind and source.
struct Errors {
  int count = 0;
  double sum = 0, worst = 0;
  void add(double error) {
    ++count;
    sum += std::abs(error);
    worst = std::max(worst, std::abs(error));
  }
  [[nodiscard]] Object json() const {
    return {{"rows", count}, {"mean", count == 0 ? 0 : sum / count}, {"worst", worst}};
  }
  [[nodiscard]] std::string text() const {
    return str("mean ", fixed_text(100 * sum / count, 1), " %, worst ", fixed_text(100 * worst, 1),
               " % of ", counted(count, "row"));
  }
};

/// The sums over the rows of a source.
struct SourceErrors {
  Errors time, memory;
  int fits_wrong = 0;
  int unsupported = 0;
};

using Sources = std::map<std::string, SourceErrors>;

std::string number(double value, size_t width, int digits) {
  return right_aligned(value == 0 ? "-" : fixed_text(value, digits), width);
}

std::string error_text(double published, double predicted) {
  const double percent = 100 * (predicted / published - 1);
  return right_aligned(
      published == 0 ? "" : str(percent < 0 ? "" : "+", fixed_text(percent, 1), " %"), 8);
}

/// Whether a run that had the memory is predicted to be too large, or the reverse. Rows that do not
/// say how they used memory tell nothing.
bool fits_wrong(const PublishedRun& p, const ClusterCost& cost) {
  return p.assumed.empty() && cost.fits == p.out_of_memory;
}

/// Adds a row to its source.
void add(SourceErrors& out, const PublishedRun& p, const ClusterCost& cost) {
  if (p.step_s > 0) out.time.add(cost.time.total() / p.step_s - 1);
  if (p.memory_bytes > 0) out.memory.add(cost.memory.total() / p.memory_bytes - 1);
  if (fits_wrong(p, cost)) ++out.fits_wrong;
}

Object json_of(const PublishedRun& p, const ClusterCost& cost) {
  Object out = {{"id", p.id},
                {"source", p.source},
                {"model", p.model},
                {"cluster", p.cluster},
                {"predicted_step_s", cost.time.total()},
                {"predicted_bytes", cost.memory.total()},
                {"fits", cost.fits}};
  if (p.step_s > 0) out["step_s"] = p.step_s;
  if (p.memory_bytes > 0) out["bytes"] = p.memory_bytes;
  if (p.out_of_memory) out["out_of_memory"] = true;
  if (!p.assumed.empty()) out["assumed"] = p.assumed;
  return out;
}

void print(const PublishedRun& p, const ClusterCost& cost) {
  const double seconds = cost.time.total();
  const double memory = cost.memory.total() / kGiB;
  TextStream out;
  out << std::setw(5) << p.id << ' ' << std::left << std::setw(18) << p.model << std::right
      << number(p.step_s, 10, 3) << number(seconds, 10, 3) << error_text(p.step_s, seconds)
      << number(p.memory_bytes / kGiB, 8, 1) << number(memory, 8, 1)
      << error_text(p.memory_bytes / kGiB, memory);
  if (p.out_of_memory) out << "  out of memory";
  if (fits_wrong(p, cost)) out << (cost.fits ? ", not predicted" : "  too large");
  for (const std::string& assumed : p.assumed) out << "  assumed: " << assumed;
  log_info(out.str());
}

void print(const Sources& sources) {
  for (const auto& [name, errors] : sources) {
    log_info(name);
    if (errors.time.count > 0) log_info("  time    ", errors.time.text());
    if (errors.memory.count > 0) log_info("  memory  ", errors.memory.text());
    if (errors.fits_wrong > 0) {
      log_info("  fits    wrong for ", counted(errors.fits_wrong, "row"));
    }
    if (errors.unsupported > 0) log_info("  not predicted: ", counted(errors.unsupported, "row"));
  }
}

Object json_of(const Sources& sources) {
  Object out = Object::array();
  for (const auto& [name, errors] : sources) {
    out.push_back({{"source", name},
                   {"time", errors.time.json()},
                   {"memory", errors.memory.json()},
                   {"fits_wrong", errors.fits_wrong},
                   {"not_predicted", errors.unsupported}});
  }
  return out;
}

Cluster cluster_of_row(const PublishedRun& p, const std::optional<Cluster>& replaced) {
  return replaced && replaced->name == p.cluster ? *replaced : cluster_preset(p.cluster);
}

}  // namespace

void plan_runs(const PlanOptions& o) {
  std::optional<Cluster> replaced;
  CLEAVE_CHECK(o.cluster != "here", Code::kUsage,
               "--cluster here with --runs: published runs were not on this host; give a cluster "
               "file with the name of their machine");
  if (!o.cluster.empty()) replaced = read_cluster(o.cluster);
  const std::vector<PublishedRun> runs = read_published_runs(o.runs);
  if (!o.json) {
    log_info("   id model              step [s] predicted   error  memory predicted [GiB]");
  }
  Sources sources;
  Object rows = Object::array();
  for (const PublishedRun& p : runs) {
    SourceErrors& source = sources[p.source];
    if (!p.unsupported.empty()) {
      ++source.unsupported;
      if (o.json) {
        rows.push_back({{"id", p.id}, {"source", p.source}, {"not_predicted", p.unsupported}});
      } else {
        log_info("  ", p.id, ' ', p.model, ": not predicted: ", p.unsupported);
      }
      continue;
    }
    const ClusterCost cost = cluster_cost(cluster_of_row(p, replaced), p.size, p.run);
    add(source, p, cost);
    o.json ? rows.push_back(json_of(p, cost)) : print(p, cost);
  }
  if (o.json) return log_info(Object({{"rows", rows}, {"sources", json_of(sources)}}).dump());
  print(sources);
}

}  // namespace cleave::inline planner
