#pragma once
#include <string>
#include <vector>

namespace cleave {

/// One curve. NaN values leave a gap.
struct Series {
  std::string name{};
  std::vector<double> x{};  ///< ascending, as many as y
  std::vector<double> y{};
  int color = 1;          ///< 1 to 6: the page's series colors
  bool is_faint = false;  ///< thin and pale, behind the others; not named in the legend
  bool has_dots = false;  ///< a mark at every value, for few values
};

/// Curves over one x axis.
struct Chart {
  std::string title;
  std::string x_name = "step";
  bool from_zero = false;  ///< the y axis begins at 0
  std::vector<Series> series;
};

/// An <svg> of the curves with axes, and a legend where there are several. Values can be read by
/// pointing at the curve. Colors come from the page (CSS variables --c1 to --c6, --ink, --grid).
std::string chart_svg(const Chart& chart);

/// One part of a whole, in a bar.
struct BarPart {
  std::string name{};
  double value = 0;
  std::string text;  ///< the value for people
};

/// A whole and its parts, drawn to scale.
struct Bar {
  std::string name{};
  std::vector<BarPart> parts;
  std::string total{};  ///< the sum for people
};

/// Horizontal stacked bars on one scale, with a legend; part i has the i-th series color.
std::string bars_html(const std::vector<Bar>& bars);

/// A number in at most three or four characters: "0.0003", "2.31", "12k", "3e-7".
std::string short_number(double value);

/// Text as HTML shows it.
std::string escaped_html(const std::string& text);

/// Every stretch of values that falls on one of `count` columns becomes its mean; fewer values
/// stay as they are. NaN counts as nothing.
Series thinned(const Series& series, size_t count);

/// The mean of up to `reach` values on both sides of each one, and itself; fewer towards the ends,
/// so that nothing lags. NaN counts as nothing.
std::vector<double> smoothed(const std::vector<double>& values, size_t reach);

}  // namespace cleave
