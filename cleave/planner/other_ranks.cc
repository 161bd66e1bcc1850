#include "cleave/planner/other_ranks.h"

#include <algorithm>
#include <numeric>

#include "cleave/base/error.h"
#include "cleave/base/str.h"

namespace cleave::inline planner {
namespace {

int64_t num_ranks(const LayoutOptions& layout) {
  return int64_t{layout.tp} * layout.pp * layout.dp;
}

int64_t share_of(int64_t batch_size, int dp) {
  return (batch_size + dp - 1) / dp;
}

/// The micro-batch that training uses; the default is that of default_micro_batch_size().
int64_t micro_batch_of(const RankUse& use) {
  if (use.micro_batch_size > 0) return use.micro_batch_size;
  const int64_t share = share_of(use.batch_size, use.layout.dp);
  const int pp = use.layout.pp;
  return pp > 1 ? std::max<int64_t>(1, share / (int64_t{4} * pp)) : share;
}

/// `before` with other sizes. The options that need several stages or experts follow.
RankUse with_sizes(const RankUse& before, int tp, int pp, int dp) {
  RankUse after = before;
  after.layout.tp = tp;
  after.layout.pp = pp;
  after.layout.dp = dp;
  after.layout.ep = std::gcd(before.layout.ep, dp);
  if (pp == 1) {
    after.layout.virtual_pipeline = 1;
    after.layout.schedule_pp.clear();
  }
  after.micro_batch_size = std::min(micro_batch_of(before), share_of(before.batch_size, dp));
  return after;
}

/// " dp=3 -> 2", or " dp=3" if it is the same.
std::string change_of(const char* name, int64_t before, int64_t after) {
  return before == after ? str(' ', name, '=', after) : str(' ', name, '=', before, " -> ", after);
}

}  // namespace

RankUse on_other_ranks(const RankUse& before, std::span<const int> ranks_of_hosts) {
  const LayoutOptions& was = before.layout;
  const int ranks = std::accumulate(ranks_of_hosts.begin(), ranks_of_hosts.end(), 0);
  if (num_ranks(was) == ranks) return before;
  const auto fits_inside = [&](int tp) {
    return std::all_of(ranks_of_hosts.begin(), ranks_of_hosts.end(),
                       [tp](int of_host) { return of_host % tp == 0; });
  };
  for (int tp = was.tp; tp >= 1; --tp) {
    if (was.tp % tp != 0 || !fits_inside(tp)) continue;
    for (int pp = was.pp; pp >= 1; --pp) {
      if (was.pp % pp != 0 || ranks % (tp * pp) != 0) continue;
      const int dp = ranks / (tp * pp);
      if (dp <= before.batch_size) return with_sizes(before, tp, pp, dp);
    }
  }
  throw Error(Code::kShape,
              str("a run of tp=", was.tp, " x pp=", was.pp, " x dp=", was.dp,
                  " cannot continue on ", ranks, " ranks: the batch of ", before.batch_size,
                  " sequences is too small to give each data-parallel rank one; start it on fewer "
                  "ranks"));
}

std::string describe_change(const RankUse& before, const RankUse& after) {
  const LayoutOptions &was = before.layout, &now = after.layout;
  std::string text = str(num_ranks(now), " ranks instead of ", num_ranks(was), ":",
                         change_of("dp", was.dp, now.dp), ",", change_of("tp", was.tp, now.tp), ",",
                         change_of("pp", was.pp, now.pp));
  if (was.ep != now.ep) text += str(",", change_of("ep", was.ep, now.ep));
  const int64_t share = share_of(after.batch_size, now.dp);
  const int64_t passes = (share + after.micro_batch_size - 1) / after.micro_batch_size;
  return text + str("; the batch stays ", after.batch_size, ", in ", passes, " micro-batch",
                    passes == 1 ? "" : "es", " of up to ", after.micro_batch_size, " per rank");
}

}  // namespace cleave::inline planner
