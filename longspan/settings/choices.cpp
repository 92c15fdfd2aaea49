#include "longspan/settings/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "longspan/base/names.h"

namespace longspan {
namespace {

template <typename Choice, size_t N>
Choice chosen(const char* key, const std::string& word,
              const std::array<std::pair<std::string_view, Choice>, N>& words) {
  for (const auto& [name, choice] : words) {
    if (word == name) return choice;
  }
  throw std::logic_error(fmt::format("{}: {} has no meaning", key, word));
}

}  // namespace

std::string_view name_of(FinetuningType type) {
  switch (type) {
    case FinetuningType::kFull:
      return "full";
    case FinetuningType::kFreeze:
      return "freeze";
    case FinetuningType::kLora:
      return "lora";
  }
  throw std::logic_error("no such finetuning_type");
}

FinetuningType finetuning_type_of(const MethodSettings& config) {
  for (const FinetuningType type : kFinetuningTypes) {
    if (config.finetuning_type == name_of(type)) return type;
  }
  throw std::logic_error(fmt::format("finetuning_type: {} has no meaning", config.finetuning_type));
}

SamplingStrategy sampling_strategy_of(const MethodSettings& config) {
  constexpr std::array<std::pair<std::string_view, SamplingStrategy>, 2> kWords{{
      {"random", SamplingStrategy::kRandom},
      {"sequential", SamplingStrategy::kSequential},
  }};
  return chosen("train_sampling_strategy", config.train_sampling_strategy, kWords);
}

std::vector<ReportTo> reports_of(const OutputSettings& config) {
  constexpr std::array<std::pair<std::string_view, ReportTo>, 7> kWords{{
      {"none", ReportTo::kNothing},
      {"tensorboard", ReportTo::kTensorBoard},
      {"all", ReportTo::kAll},
      {"wandb", ReportTo::kWandb},
      {"trackio", ReportTo::kTrackio},
      {"swanlab", ReportTo::kSwanlab},
      {"mlflow", ReportTo::kMlflow},
  }};
  std::vector<ReportTo> reports;
  for (const std::string& name : split_names(config.report_to)) {
    reports.push_back(chosen("report_to", name, kWords));
  }
  return reports;
}

bool wants_tensorboard(const OutputSettings& config) {
  const std::vector<ReportTo> reports = reports_of(config);
  return std::ranges::any_of(
      reports, [](ReportTo to) { return to == ReportTo::kTensorBoard || to == ReportTo::kAll; });
}

std::vector<std::string> services_of(const OutputSettings& config) {
  std::vector<std::string> services;
  for (const std::string& name : split_names(config.report_to)) {
    if (name == "wandb" || name == "trackio" || name == "swanlab" || name == "mlflow") {
      services.push_back(name);
    }
  }
  if (config.services.use_swanlab && std::ranges::find(services, "swanlab") == services.end()) {
    services.emplace_back("swanlab");
  }
  return services;
}

WantedDevice wanted_device_of(const ModelSettings& config) {
  constexpr std::array<std::pair<std::string_view, WantedDevice>, 3> kWords{{
      {"auto", WantedDevice::kAuto},
      {"cuda", WantedDevice::kCuda},
      {"cpu", WantedDevice::kCpu},
  }};
  return chosen("device", config.device, kWords);
}

ReduceScatter reduce_scatter_of(const ModelSettings& config) {
  constexpr std::array<std::pair<std::string_view, ReduceScatter>, 3> kWords{{
      {"auto", ReduceScatter::kAuto},
      {"nccl", ReduceScatter::kNccl},
      {"exchange", ReduceScatter::kExchange},
  }};
  return chosen("reduce_scatter", config.reduce_scatter, kWords);
}

bool sums_by_nccl(const ModelSettings& config, bool cuda) {
  if (!uses_nccl(config, cuda)) return false;
  const ReduceScatter word = reduce_scatter_of(config);
  return word == ReduceScatter::kNccl || (word == ReduceScatter::kAuto && !config.full_determinism);
}

MixStrategy mix_strategy_of(const DataSettings& config) {
  constexpr std::array<std::pair<std::string_view, MixStrategy>, 4> kWords{{
      {"concat", MixStrategy::kConcat},
      {"interleave_under", MixStrategy::kInterleaveUnder},
      {"interleave_over", MixStrategy::kInterleaveOver},
      {"interleave_once", MixStrategy::kInterleaveOnce},
  }};
  return chosen("mix_strategy", config.mix_strategy, kWords);
}

OnBadRow on_bad_row_of(const DataSettings& config) {
  constexpr std::array<std::pair<std::string_view, OnBadRow>, 2> kWords{{
      {"stop", OnBadRow::kStop},
      {"skip", OnBadRow::kSkip},
  }};
  return chosen("on_bad_row", config.on_bad_row, kWords);
}

OnNonfinite on_nonfinite_of(const OptimizationSettings& config) {
  constexpr std::array<std::pair<std::string_view, OnNonfinite>, 2> kWords{{
      {"stop", OnNonfinite::kStop},
      {"skip", OnNonfinite::kSkip},
  }};
  return chosen("on_nonfinite", config.on_nonfinite, kWords);
}

OffloadedTo activations_offloaded_to(const MemorySettings& config) {
  constexpr std::array<std::pair<std::string_view, OffloadedTo>, 3> kWords{{
      {"false", OffloadedTo::kNowhere},
      {"true", OffloadedTo::kMemory},
      {"disk", OffloadedTo::kDisk},
  }};
  return chosen("offload_activations", config.offload_activations, kWords);
}

Interval interval_of(const std::string& strategy) {
  constexpr std::array<std::pair<std::string_view, Interval>, 3> kWords{{
      {"no", Interval::kNever},
      {"steps", Interval::kSteps},
      {"epoch", Interval::kEpoch},
  }};
  return chosen("a strategy", strategy, kWords);
}

ResumeFrom resume_from(const OutputSettings& config) {
  const std::string& from = config.resume_from_checkpoint;
  if (from == "false") return ResumeFrom::kNothing;
  if (from == "true") return ResumeFrom::kNewest;
  if (!from.empty()) return ResumeFrom::kFolder;
  return config.overwrite_output_dir ? ResumeFrom::kNothing : ResumeFrom::kNewestIfAny;
}

}  // namespace longspan
