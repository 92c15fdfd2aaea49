#include "longspan/text/bars.h"

#include <nlohmann/json.hpp>

#include "longspan/text/rust_call.h"

namespace longspan {

void write_bars(const std::string& png_path, const std::string& title,
                const std::vector<std::string>& rows, const std::vector<BarPanel>& panels,
                int width, int height) {
  nlohmann::json described = nlohmann::json::array();
  for (const BarPanel& panel : panels) {
    nlohmann::json parts = nlohmann::json::array();
    // NaN and infinity become null, which draws nothing.
    for (const BarPart& part : panel.parts) {
      parts.push_back({{"label", part.label}, {"values", part.values}});
    }
    described.push_back({{"title", panel.title},
                         {"x_label", panel.x_label},
                         {"parts", std::move(parts)},
                         {"notes", panel.notes},
                         {"marks", panel.marks},
                         {"mark_label", panel.mark_label}});
  }
  const nlohmann::json picture = {{"width", width},
                                  {"height", height},
                                  {"title", title},
                                  {"rows", rows},
                                  {"panels", std::move(described)}};
  const std::string text = picture.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  rust_call(lsr_write_bars, rust_view(png_path), rust_view(text));
}

}  // namespace longspan
