#include "cleave/layout/placements_seen.h"

namespace cleave::inline layout {
namespace {

thread_local PlacementsSeen* innermost = nullptr;

}  // namespace

PlacementsSeen::PlacementsSeen() : outer_(innermost) {
  innermost = this;
}

PlacementsSeen::~PlacementsSeen() {
  innermost = outer_;
}

PlacementsSeen* PlacementsSeen::current() {
  return innermost;
}

void PlacementsSeen::add(const DTensor& value) {
  if (innermost == nullptr || !value.is_split() || !value.is_floating_point()) return;
  const Placement& p = value.placement();
  const bool is_sharded_work = p.is_shard() || p.is_fanout();
  std::optional<Seen>& first = is_sharded_work ? innermost->sharded_work_ : innermost->same_work_;
  if (!first) first = Seen{.placement = p, .maker = value.maker()};
}

std::string PlacementsSeen::Seen::describe() const {
  return str("a ", placement.describe(), " made by ", maker);
}

}  // namespace cleave::inline layout
