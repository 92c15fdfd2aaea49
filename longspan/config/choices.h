// Keys whose value is one of several words, as what code asks. The table of keys has the words;
// whoever adds one there is told by the compiler where it has to be known. No torch.
#pragma once

#include <string>

#include "longspan/config/memory_settings.h"
#include "longspan/config/method_settings.h"

namespace longspan {

/// finetuning_type
enum class FinetuningType {
  kFull,
  kFreeze,  ///< some layers are trained
  kLora,    ///< matrices beside the model's
};
/// Throws std::logic_error for a word that is none.
FinetuningType finetuning_type_of(const MethodSettings& config);
inline bool trains_adapter(const MethodSettings& config) {
  return finetuning_type_of(config) == FinetuningType::kLora;
}

/// offload_activations
enum class OffloadedTo { kNowhere, kMemory, kDisk };
/// Throws std::logic_error for a word that is none.
OffloadedTo activations_offloaded_to(const MemorySettings& config);

/// eval_strategy, save_strategy, logging_strategy
enum class Interval { kNever, kSteps, kEpoch };
/// Throws std::logic_error for a word that is none.
Interval interval_of(const std::string& strategy);

}  // namespace longspan
