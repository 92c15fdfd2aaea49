// Line plots. No torch. (Backed by the `plotters` crate with a font of its own, see rust/.)
#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Curve {
  std::string label{};
  std::vector<double> x{}, y{};  // NaN and infinity leave a gap
  bool faint = false;   // drawn thin and pale behind other curves, in the colour of the next curve
                        // (the raw points of a smoothed curve)
  bool dashed = false;  // keeps overlapping curves visible
};

struct PlotPanel {
  std::string title, x_label, y_label;
  std::vector<Curve> curves;
};

/// Writes a PNG with the panels side by side, axes with ticks and numbers, a grid and a legend.
/// Throws UserError if the file cannot be written.
void write_plot(const std::string& png_path, const std::vector<PlotPanel>& panels, int width = 1000,
                int height = 600);

}  // namespace longspan
