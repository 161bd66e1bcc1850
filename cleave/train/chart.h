#pragma once
#include <string>
#include <vector>

namespace cleave {

/// One curve. NaN values leave a gap.
struct Series {
  std::string name{};
  std::vector<double> x{};  ///< ascending, as long as y
  std::vector<double> y{};
  int color = 1;          ///< 1 to 6: a series color of the page
  bool is_faint = false;  ///< drawn thin and pale below the others; not in the legend
  bool has_dots = false;  ///< a dot at every value, for few values
};

/// Curves over one x axis.
struct Chart {
  std::string title;
  std::string x_name = "step";
  bool from_zero = false;  ///< the y axis begins at 0
  std::vector<Series> series;
};

/// An <svg> of the curves with axes, and a legend if there are several curves. Hovering over a
/// curve shows its values. Colors come from the page (CSS variables --c1 to --c6, --ink, --grid).
std::string chart_svg(const Chart& chart);

/// One part of a whole, in a bar.
struct BarPart {
  std::string name{};
  double value = 0;
  std::string text;  ///< the value as displayed
};

/// A whole and its parts, drawn to scale.
struct Bar {
  std::string name{};
  std::vector<BarPart> parts;
  std::string total{};  ///< the sum as displayed
};

/// Horizontal stacked bars on one scale, with a legend; part i has the i-th series color.
std::string bars_html(const std::vector<Bar>& bars);

/// A number in at most three or four characters: "0.0003", "2.31", "12k", "3e-7".
std::string short_number(double value);

/// `text` with HTML special characters escaped.
std::string escaped_html(const std::string& text);

/// Divides the values into `count` columns and replaces each column by its mean. Up to `count`
/// values stay unchanged. NaN is ignored.
Series thinned(const Series& series, size_t count);

/// A centered moving average over up to `reach` values on each side. The window shrinks towards the
/// ends, so the curve does not lag. NaN is ignored.
std::vector<double> smoothed(const std::vector<double>& values, size_t reach);

}  // namespace cleave
