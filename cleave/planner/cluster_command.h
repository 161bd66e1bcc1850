#pragma once
#include <string>

#include "cleave/planner/cluster_cost.h"
#include "cleave/planner/options.h"

namespace cleave::inline planner {

/// The sizes of a model's config.json. Throws Error(kFormat) for missing or wrong sizes,
/// Error(kShape) if only some layers have experts, which this forecast does not model.
TransformerSize transformer_size(const Json& config);

/// "300B", "15T", "2e12", "500000000". Throws Error(kUsage).
double tokens_from_text(const std::string& text);

/// `cleave plan --cluster`: prints the best layouts for o.ranks devices. Throws Error(kShape) if no
/// layout fits the batch.
void plan_on_cluster(const PlanOptions& o, const Json& config, const Cluster& cluster);

/// `cleave plan --runs`: prints a table of published runs beside predictions. A cluster file in
/// o.cluster replaces the machine of the same name. Throws as read_published_runs().
void plan_runs(const PlanOptions& o);

}  // namespace cleave::inline planner
