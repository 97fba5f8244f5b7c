// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace sherd {

struct PlotPoint {
  double step = 0;
  double value = 0;
};

struct PlotLine {
  std::string name;
  std::string colour;  ///< CSS
  std::vector<PlotPoint> points;
  bool faint = false;  ///< drawn behind what matters
};

/// Lines over the steps of a run, from the least value to the largest, as a figure of HTML. Values
/// that are not finite are left out, and with a logarithmic scale those that are not positive.
class Plot {
 public:
  enum class Scale : uint8_t { linear, logarithmic };
  /// `marks`: steps with a vertical line.
  Plot(
      std::string title,
      std::vector<PlotLine> lines,
      std::vector<double> marks = {},
      Scale scale = Scale::linear);
  /// `kind`: a class of the figure.
  std::string html(const std::string& kind = "") const;

 private:
  bool shows(const PlotPoint& point) const;
  std::string axes() const;
  std::string drawn(const PlotLine& line) const;
  std::string legend() const;
  double place_of(double step) const;
  double height_of(double value) const;
  double value_at(double share) const;

  std::string title_;
  std::vector<PlotLine> lines_;
  std::vector<double> marks_;
  Scale scale_;
  double least_ = std::numeric_limits<double>::infinity();
  double most_ = -std::numeric_limits<double>::infinity();
  double first_ = std::numeric_limits<double>::infinity();
  double last_ = -std::numeric_limits<double>::infinity();
};

/// Returns at most about `most` points that look the same: of each stretch of many the lowest and
/// the highest.
std::vector<PlotPoint> thinned(const std::vector<PlotPoint>& points, size_t most);
/// Returns means of each point with those before it, which count the less the farther away they
/// are: about `window` of them count.
std::vector<PlotPoint> smoothed(const std::vector<PlotPoint>& points, double window);

/// Returns a number in at most eight characters.
std::string brief_number(double value);
/// Returns text as HTML.
std::string escaped_html(const std::string& text);

}  // namespace sherd
