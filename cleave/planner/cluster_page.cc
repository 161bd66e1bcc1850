#include "cleave/planner/cluster_page.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cleave/base/error.h"
#include "cleave/planner/plan_page_template.h"

namespace cleave::inline planner {
namespace {

using Object = nlohmann::ordered_json;

constexpr int kNumDigits = 4;  // of a number: more would only make the page larger

/// The settings of a layout, then bytes by memory_kinds(), then seconds by time_kinds().
Object row_of(const ClusterPlan& p) {
  const ClusterRun& r = p.run;
  Object row = {r.tp,
                r.pp,
                r.micro_batch,
                r.virtual_stages,
                r.sequence_parallel ? 1 : 0,
                static_cast<int>(r.sharding),
                static_cast<int>(r.recompute),
                r.ep};
  for (const auto& [name, bytes] : memory_kinds(p.cost.memory))
    row.push_back(rounded_to(bytes, kNumDigits));
  for (const auto& [name, seconds] : time_kinds(p.cost.time))
    row.push_back(rounded_to(seconds, kNumDigits));
  return row;
}

template <class Kinds>
Object names_of(const Kinds& kinds) {
  Object out = Object::array();
  for (const auto& [name, value] : kinds) out.push_back(name);
  return out;
}

/// JSON without a '<' that could end the script element.
std::string script_text(const Object& data) {
  std::string out;
  for (const char c : data.dump(-1, ' ', true, Object::error_handler_t::replace)) {
    out += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return out;
}

}  // namespace

std::string plan_page(const Cluster& c, const TransformerSize& m, const ClusterTask& task,
                      const PlanPage& page) {
  constexpr size_t kMostLayouts = 40000;
  ClusterTask all = task;
  all.memory_bytes = std::numeric_limits<double>::infinity();
  const ClusterPlans plans = search_cluster(c, m, all, kMostLayouts);
  const ClusterRun& r = task.run;
  const double step_tokens = static_cast<double>(r.global_batch) * static_cast<double>(r.seq_len);
  const double peak =
      c.matrix_flops.at(static_cast<size_t>(r.type)) * static_cast<double>(task.devices);
  Object data = {{"model", page.model},
                 {"cluster", c.name},
                 {"sources", c.sources},
                 {"parameters", m.parameters()},
                 {"devices", task.devices},
                 {"batch", r.global_batch},
                 {"seq_len", r.seq_len},
                 {"tokens", page.tokens},
                 {"memory_limit", task.memory_bytes},
                 {"step_tokens", step_tokens},
                 // Seconds of a step at the devices' full speed.
                 {"ideal_s", m.train_flops_per_token(r.seq_len) * step_tokens / peak},
                 {"considered", plans.considered},
                 {"memory_kinds", names_of(memory_kinds({}))},
                 {"time_kinds", names_of(time_kinds({}))}};
  data["layouts"] = Object::array();
  for (const ClusterPlan& p : plans.best) data["layouts"].push_back(row_of(p));
  constexpr std::string_view kPlace = "{{DATA}}";
  const size_t at = kPlanPageTemplate.find(kPlace);
  if (at == std::string_view::npos) CLEAVE_BUG("the page has no ", kPlace);
  std::string html(kPlanPageTemplate.substr(0, at));
  html += script_text(data);
  return html.append(kPlanPageTemplate.substr(at + kPlace.size()));
}

}  // namespace cleave::inline planner
