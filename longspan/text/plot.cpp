#include "longspan/text/plot.h"

#include <nlohmann/json.hpp>

#include "longspan/text/rust_call.h"

namespace longspan {

void write_plot(const std::string& png_path, const std::vector<PlotPanel>& panels, int width,
                int height) {
  nlohmann::json described = nlohmann::json::array();
  for (const PlotPanel& panel : panels) {
    nlohmann::json curves = nlohmann::json::array();
    for (const Curve& curve : panel.curves) {
      // NaN and infinity become null, which leaves a gap in the curve.
      curves.push_back({{"label", curve.label},
                        {"x", curve.x},
                        {"y", curve.y},
                        {"faint", curve.faint},
                        {"dashed", curve.dashed}});
    }
    described.push_back({{"title", panel.title},
                         {"x_label", panel.x_label},
                         {"y_label", panel.y_label},
                         {"curves", std::move(curves)}});
  }
  const nlohmann::json picture = {
      {"width", width}, {"height", height}, {"panels", std::move(described)}};
  const std::string text = picture.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  rust_call(lsr_write_plot, rust_view(png_path), rust_view(text));
}

}  // namespace longspan
