// Pictures of bars: methods compared by several measures. No torch. (Backed by rust/, as plot.h.)
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// A piece of every row's bar. NaN, infinity, negative: no piece.
struct BarPart {
  std::string label{};  // in the legend; "" is not shown
  std::vector<double> values{};
};

/// One measure. Everything goes by row; shorter lists leave the last rows without.
struct BarPanel {
  std::string title{}, x_label{};
  std::vector<BarPart> parts{};      // laid end to end
  std::vector<std::string> notes{};  // text behind the bar
  std::vector<double> marks{};       // a stroke across the bar, at what was expected
  std::string mark_label{};
};

/// Writes a PNG: a row for each name, horizontal bars, the panels side by side. Throws UserError
/// when the file cannot be written.
void write_bars(const std::string& png_path, const std::string& title,
                const std::vector<std::string>& rows, const std::vector<BarPanel>& panels,
                int width = 1000, int height = 600);

}  // namespace longspan
