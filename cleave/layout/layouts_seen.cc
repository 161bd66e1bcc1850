#include "cleave/layout/layouts_seen.h"

namespace cleave::inline layout {
namespace {

thread_local LayoutsSeen* innermost = nullptr;

}  // namespace

LayoutsSeen::LayoutsSeen() : outer_(innermost) {
  innermost = this;
}

LayoutsSeen::~LayoutsSeen() {
  innermost = outer_;
}

LayoutsSeen* LayoutsSeen::current() {
  return innermost;
}

void LayoutsSeen::add(const DTensor& value) {
  if (innermost == nullptr || !value.is_split() || !value.local().is_floating_point()) return;
  const Placement& p = value.placement();
  const bool is_split_work = p.is_shard() || p.is_fanout();
  std::optional<Seen>& first = is_split_work ? innermost->split_work_ : innermost->same_work_;
  if (!first) first = Seen{.placement = p, .maker = value.maker()};
}

std::string LayoutsSeen::Seen::describe() const {
  return str("a ", placement.describe(), " made by ", maker);
}

}  // namespace cleave::inline layout
