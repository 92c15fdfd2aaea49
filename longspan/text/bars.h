// Bar charts: methods compared by several measures. No torch. (Backed by rust/, as plot.h.)
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// A segment of every row's bar. NaN, infinity, negative: no segment.
struct BarPart {
  std::string label{};  // in the legend; empty: not shown
  std::vector<double> values{};
};

/// One measure. Every list is indexed by row; shorter lists leave the last rows empty.
struct BarPanel {
  std::string title{}, x_label{};
  std::vector<BarPart> parts{};      // stacked
  std::vector<std::string> notes{};  // text after the bar
  std::vector<double> marks{};       // a mark across the bar, at the expected value
  std::string mark_label{};
};

/// Writes a PNG with a row for each name, horizontal bars, and the panels side by side. Throws
/// UserError if the file cannot be written.
void write_bars(const std::string& png_path, const std::string& title,
                const std::vector<std::string>& rows, const std::vector<BarPanel>& panels,
                int width = 1000, int height = 600);

}  // namespace longspan
