#include "cleave/train/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <sstream>

#include "cleave/base/str.h"

namespace cleave {
namespace {

constexpr double kWidth = 640, kHeight = 260;
constexpr double kLeft = 52, kRight = 14, kTop = 12, kBottom = 34;  // margins for the axes
constexpr size_t kMaxColumns = 500;                                 // points drawn per curve
constexpr size_t kMaxHovers = 100;

struct Ticks {
  double low = 0, high = 1, step = 1;
};

// An axis that covers [low, high] in steps of 1, 2 or 5 times a power of ten.
Ticks round_axis(double low, double high, double num_steps) {
  if (!(low <= high)) return {};
  const double size = std::max(std::abs(low), std::abs(high));
  if (high - low < size * 1e-9 || low == high) {  // too close for steps that a double can represent
    const double margin = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= margin;
    high += margin;
  }
  const double raw = (high - low) / num_steps;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= raw) step = factor * power;
  }
  return {std::floor(low / step) * step, std::ceil(high / step) * step, step};
}

struct Scale {
  Ticks x, y;

  [[nodiscard]] double px(double value) const {
    return kLeft + (value - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double py(double value) const {
    return kHeight - kBottom - (value - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom);
  }
};

// The y range comes from the thinned curves, the x range from the `whole` ones.
Scale scale_of(const Chart& chart, const Chart& whole) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  double x_low = kFar, x_high = -kFar, y_low = kFar, y_high = -kFar;
  for (const Series& series : whole.series) {
    if (series.x.empty()) continue;
    x_low = std::min(x_low, series.x.front());
    x_high = std::max(x_high, series.x.back());
  }
  for (const Series& series : chart.series) {
    for (const double y : series.y) {
      if (!std::isfinite(y)) continue;
      y_low = std::min(y_low, y);
      y_high = std::max(y_high, y);
    }
  }
  if (chart.from_zero && y_high >= 0) y_low = 0;
  Scale scale{round_axis(x_low, x_high, 6), round_axis(y_low, y_high, 5)};
  scale.x.step = std::max(scale.x.step, 1.0);  // a training step is a whole number
  if (x_low < x_high) {                        // curves span the full width
    scale.x.low = x_low;
    scale.x.high = x_high;
  }
  return scale;
}

std::string coordinate(double value) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << value;
  return std::move(out).str();
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text) {
  return str("<text x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" text-anchor=\"", anchor,
             "\">", escaped_html(text), "</text>");
}

std::string axes(const Scale& scale, const std::string& x_name) {
  std::string svg = "<g class=\"axes\">";
  constexpr double kSlack = 1e-9;
  const int64_t num_lines = std::llround((scale.y.high - scale.y.low) / scale.y.step);
  for (int64_t i = 0; i <= num_lines; ++i) {
    double value = scale.y.low + static_cast<double>(i) * scale.y.step;
    if (std::abs(value) < scale.y.step * kSlack) value = 0;
    const std::string y = coordinate(scale.py(value));
    svg += str("<line x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", y, "\" y2=\"", y,
               "\"/>");
    svg += text_at(kLeft - 8, scale.py(value) + 4, "end", short_number(value));
  }
  const auto first = static_cast<int64_t>(std::ceil(scale.x.low / scale.x.step - kSlack));
  const auto last = static_cast<int64_t>(std::floor(scale.x.high / scale.x.step + kSlack));
  for (int64_t i = first; i <= last; ++i) {
    const double value = static_cast<double>(i) * scale.x.step;
    svg += text_at(scale.px(value), kHeight - kBottom + 18, "middle", short_number(value));
  }
  return svg + text_at(kWidth - kRight, kHeight - 3, "end", x_name) + "</g>";
}

std::string curve(const Series& series, const Scale& scale) {
  std::string path;
  bool is_drawing = false;
  for (size_t i = 0; i < series.y.size(); ++i) {
    const bool is_value = std::isfinite(series.y[i]);
    if (is_value) {
      path += str(is_drawing ? 'L' : 'M', coordinate(scale.px(series.x[i])), ' ',
                  coordinate(scale.py(series.y[i])));
    }
    is_drawing = is_value;
  }
  return str("<path class=\"curve", series.is_faint ? " faint" : "", "\" stroke=\"var(--c",
             series.color, ")\" d=\"", path, "\"/>");
}

std::string marks(const Series& series, const Scale& scale, const std::string& x_name) {
  const Series few = series.has_dots ? series : thinned(series, kMaxHovers);
  std::string svg;
  for (size_t i = 0; i < few.y.size(); ++i) {
    if (!std::isfinite(few.y[i])) continue;
    svg +=
        str("<circle class=\"", few.has_dots ? "dot" : "hover", "\" fill=\"var(--c", few.color,
            ")\" cx=\"", coordinate(scale.px(few.x[i])), "\" cy=\"", coordinate(scale.py(few.y[i])),
            "\" r=\"", few.has_dots ? 3.5 : 5.0, "\"><title>", escaped_html(x_name), ' ',
            std::llround(few.x[i]), ": ", std::setprecision(5), few.y[i], "</title></circle>");
  }
  return svg;
}

std::string legend_entry(int color, const std::string& text) {
  return str("<span><i style=\"background:var(--c", color, ")\"></i>", escaped_html(text),
             "</span>");
}

std::string series_legend(const Chart& chart) {
  std::string html;
  int named = 0;
  for (const Series& series : chart.series) {
    if (series.is_faint) continue;
    html += legend_entry(series.color, series.name);
    ++named;
  }
  return named < 2 ? "" : "<div class=\"legend\">" + html + "</div>";
}

}  // namespace

std::string escaped_html(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  std::ostringstream out;
  if (value != 0 && (size < 1e-3 || size >= 1e12)) {
    const double power = std::floor(std::log10(size) + 1e-9);
    out << std::setprecision(3) << value / std::pow(10, power) << 'e' << power;
  } else if (size >= 1e9) {
    out << std::setprecision(3) << value / 1e9 << 'G';
  } else if (size >= 1e6) {
    out << std::setprecision(3) << value / 1e6 << 'M';
  } else if (size >= 1e4) {
    out << std::setprecision(3) << value / 1e3 << 'k';
  } else {
    out << std::setprecision(4) << value;
  }
  return std::move(out).str();
}

Series thinned(const Series& series, size_t count) {
  const size_t total = series.y.size();
  if (total <= count) return series;
  Series few{.name = series.name, .color = series.color, .is_faint = series.is_faint};
  for (size_t column = 0; column < count; ++column) {
    const size_t begin = column * total / count;
    const size_t end = (column + 1) * total / count;
    double sum = 0;
    int valid = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(series.y[i])) continue;
      sum += series.y[i];
      ++valid;
    }
    few.x.push_back((series.x[begin] + series.x[end - 1]) / 2);
    few.y.push_back(valid == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / valid);
  }
  return few;
}

std::vector<double> smoothed(const std::vector<double>& values, size_t reach) {
  // Prefix sums: the mean of a window takes two subtractions.
  std::vector<double> sums{0};
  std::vector<double> counts{0};
  for (const double value : values) {
    const bool is_value = std::isfinite(value);
    sums.push_back(sums.back() + (is_value ? value : 0));
    counts.push_back(counts.back() + (is_value ? 1 : 0));
  }
  std::vector<double> means;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t near_end = std::min({reach, i, values.size() - 1 - i});
    const size_t begin = i - near_end;
    const size_t end = i + near_end + 1;
    const double count = counts[end] - counts[begin];
    means.push_back(count == 0 ? std::numeric_limits<double>::quiet_NaN()
                               : (sums[end] - sums[begin]) / count);
  }
  return means;
}

std::string chart_svg(const Chart& chart) {
  Chart drawn = chart;
  for (Series& series : drawn.series) {
    if (!series.has_dots) series = thinned(series, kMaxColumns);
  }
  const Scale scale = scale_of(drawn, chart);
  std::string svg =
      str("<figure><figcaption>", escaped_html(chart.title), series_legend(drawn),
          "</figcaption><svg viewBox=\"0 0 ", kWidth, ' ', kHeight, "\" role=\"img\" aria-label=\"",
          escaped_html(chart.title), "\">", axes(scale, chart.x_name));
  for (const bool faint : {true, false}) {
    for (const Series& series : drawn.series) {
      if (series.is_faint == faint) svg += curve(series, scale);
    }
  }
  for (const Series& series : drawn.series) {
    if (!series.is_faint) svg += marks(series, scale, chart.x_name);
  }
  return svg + "</svg></figure>\n";
}

std::string bars_html(const std::vector<Bar>& bars) {
  double longest = 0;
  for (const Bar& bar : bars) {
    double sum = 0;
    for (const BarPart& part : bar.parts) sum += part.value;
    longest = std::max(longest, sum);
  }
  std::string html = "<div class=\"bars\">";
  for (const Bar& bar : bars) {
    html += "<b>" + escaped_html(bar.name) + "</b><div>";
    for (size_t i = 0; i < bar.parts.size(); ++i) {
      const BarPart& part = bar.parts[i];
      const double share = longest > 0 ? part.value / longest * 100 : 0;
      html += str("<i style=\"width:", coordinate(share), "%;background:var(--c", i % 6 + 1,
                  ")\" title=\"", escaped_html(part.name + ": " + part.text), "\"></i>");
    }
    html += "</div><span>" + escaped_html(bar.total) + "</span>";
  }
  html += "</div><div class=\"legend\">";
  if (!bars.empty()) {
    for (size_t i = 0; i < bars.front().parts.size(); ++i) {
      const BarPart& part = bars.front().parts[i];
      html += legend_entry(static_cast<int>(i % 6) + 1,
                           bars.size() == 1 ? part.name + " " + part.text : part.name);
    }
  }
  return html + "</div>\n";
}

}  // namespace cleave
