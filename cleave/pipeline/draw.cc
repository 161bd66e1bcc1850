#include <array>
#include <iomanip>

#include "cleave/base/str.h"
#include "cleave/pipeline/schedule.h"

namespace cleave::inline pipeline {
namespace {

// Pixels.
constexpr double kUnit = 22, kRow = 26, kLeft = 60, kTop = 40, kBelow = 34;

constexpr std::array kClasses{"f", "b", "w"};

/// Stages after a rank's first are drawn lighter.
double opacity(const Schedule& schedule, const Action& a) {
  const int chunk = a.stage / schedule.shape.num_ranks;
  return 1 - 0.5 * chunk / schedule.shape.stages_per_rank;
}

void draw_row(std::ostream& out, const Schedule& schedule, const Timeline& timeline, size_t rank) {
  const double y = kTop + static_cast<double>(rank) * kRow;
  out << "<text x=\"8\" y=\"" << y + 17 << "\">rank " << rank << "</text>\n";
  for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
    const Action& a = schedule.ranks[rank][i];
    const Timeline::Span& span = timeline.ranks[rank][i];
    const double x = kLeft + span.begin * kUnit;
    const double width = (span.end - span.begin) * kUnit;
    out << "<rect class=\"" << kClasses[static_cast<size_t>(a.kind)] << "\" x=\"" << x << "\" y=\""
        << y << "\" width=\"" << width - 1 << "\" height=\"" << kRow - 4 << "\" opacity=\""
        << opacity(schedule, a) << "\"><title>" << describe(a) << "</title></rect>"
        << "<text class=\"n\" x=\"" << x + width / 2 << "\" y=\"" << y + 16 << "\">"
        << a.micro_batch << "</text>\n";
  }
}

void draw_legend(std::ostream& out, double y, bool has_weights) {
  constexpr std::array kWords{"forward", "backward", "weights"};
  for (size_t i = 0; i < (has_weights ? 3U : 2U); ++i) {
    const double x = kLeft + static_cast<double>(i) * 100;
    out << "<g><path class=\"" << kClasses[i] << "\" d=\"M" << x << " " << y
        << "h14v14h-14z\"/><text x=\"" << x + 20 << "\" y=\"" << y + 12 << "\">" << kWords[i]
        << "</text></g>\n";
  }
}

}  // namespace

std::string draw_schedule(const Schedule& schedule) {
  const Timeline timeline = timeline_of(schedule, unit_cost(schedule));
  const ScheduleShape& shape = schedule.shape;
  const double height = kTop + shape.num_ranks * kRow + kBelow;
  TextStream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kLeft + timeline.end * kUnit + 12
      << "\" height=\"" << height << "\" font-family=\"sans-serif\" font-size=\"13\">\n"
      << "<style>.f{fill:#4c8dd6}.b{fill:#e0803a}.w{fill:#5fae62}"
      << ".n{font-size:11px;text-anchor:middle;fill:#fff}</style>\n"
      << "<text x=\"8\" y=\"22\">" << name(shape.kind) << ", " << shape.num_ranks << " ranks, ";
  if (shape.stages_per_rank > 1) out << shape.stages_per_rank << " stages a rank, ";
  out << shape.num_micro_batches << " micro-batches: " << std::fixed << std::setprecision(1)
      << 100 * timeline.idle_share() << "% idle</text>\n";
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    draw_row(out, schedule, timeline, rank);
  }
  draw_legend(out, height - kBelow + 10, schedule.has(Action::Kind::kWeight));
  out << "</svg>\n";
  return std::move(out).str();
}

}  // namespace cleave::inline pipeline
