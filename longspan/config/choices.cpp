#include "longspan/config/choices.h"

#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

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

FinetuningType finetuning_type_of(const MethodSettings& config) {
  constexpr std::array<std::pair<std::string_view, FinetuningType>, 3> kWords{{
      {"full", FinetuningType::kFull},
      {"freeze", FinetuningType::kFreeze},
      {"lora", FinetuningType::kLora},
  }};
  return chosen("finetuning_type", config.finetuning_type, kWords);
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

}  // namespace longspan
