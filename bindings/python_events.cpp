#include "bindings/python_events.h"

#include <nlohmann/json.hpp>
#include <string>
#include <variant>

namespace longspan {
namespace {

using Json = nlohmann::ordered_json;  // NaN becomes null

/// Returns the members of an event, after its kind.
struct EventText {
  Json operator()(const Said& said) const { return {{"event", "message"}, {"text", said.text}}; }
  Json operator()(const Stepped& stepped) const {
    const Progress& progress = stepped.progress;
    return {{"event", "step"},
            {"step", progress.step},
            {"total_steps", progress.total_steps},
            {"epoch", progress.epoch},
            {"num_tokens", progress.num_tokens},
            {"elapsed_seconds", progress.elapsed_seconds},
            {"tokens_per_second", progress.tokens_per_second()},
            {"loss", stepped.loss}};
  }
  Json operator()(const StepsEnded&) const { return {{"event", "steps_ended"}}; }
  Json operator()(const Logged& logged) const {
    Json entry = Json::object();
    for (const auto& [name, value] : logged.entry) {
      std::visit([&](auto number) { entry[name] = number; }, value);
    }
    const bool evaluates = std::holds_alternative<EvaluationResult>(logged.measured);
    return {{"event", evaluates ? "evaluation" : "log"}, {"entry", std::move(entry)}};
  }
  Json operator()(const CheckpointSaved& saved) const {
    return {{"event", "checkpoint"}, {"folder", saved.folder}, {"step", saved.step}};
  }
  Json operator()(const ModelSaved& saved) const {
    return {{"event", "save"}, {"folder", saved.model_folder}};
  }
  Json operator()(const MemoryMeasured& measured) const {
    Json peaks = Json::array();
    for (const MeasuredPeak& peak : measured.peaks) {
      peaks.push_back({{"device", peak.device}, {"host", peak.host}, {"process", peak.resident}});
    }
    return {{"event", "memory"}, {"peaks", std::move(peaks)}};
  }
};

}  // namespace

void PythonSink::take(const Event& event) {
  if (listener_ == nullptr) return;
  // Texts may hold file names that are not UTF-8.
  listener_(std::visit(EventText{}, event)
                .dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace)
                .c_str());
}

}  // namespace longspan
