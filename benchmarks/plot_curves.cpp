// Plots for the scripts in this folder: panels as JSON on stdin, the PNG's path as the argument.
//   [{"title": "", "x_label": "", "y_label": "",
//     "curves": [{"label": "", "x": [], "y": [], "dashed": false}]}]
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "longspan/text/plot.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "plot_curves PNG < panels.json\n");
    return 2;
  }
  try {
    std::vector<longspan::PlotPanel> panels;
    for (const auto& panel : nlohmann::json::parse(std::cin)) {
      panels.push_back({panel.at("title"), panel.at("x_label"), panel.at("y_label"), {}});
      for (const auto& curve : panel.at("curves")) {
        panels.back().curves.push_back({.label = curve.at("label"),
                                        .x = curve.at("x"),
                                        .y = curve.at("y"),
                                        .dashed = curve.value("dashed", false)});
      }
    }
    longspan::write_plot(argv[1], panels, /*width=*/1200, /*height=*/560);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plot_curves: %s\n", error.what());
    return 1;
  }
  return 0;
}
