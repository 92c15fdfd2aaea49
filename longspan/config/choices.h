// Keys whose value is one of several words, as what code asks. The table of keys has the words;
// whoever adds one there is told by the compiler where it has to be known. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "longspan/config/data_settings.h"
#include "longspan/config/memory_settings.h"
#include "longspan/config/method_settings.h"
#include "longspan/config/model_settings.h"
#include "longspan/config/optimization_settings.h"
#include "longspan/config/output_settings.h"

namespace longspan {

/// finetuning_type
enum class FinetuningType {
  kFull,
  kFreeze,  ///< some layers are trained
  kLora,    ///< matrices beside the model's
};
inline constexpr FinetuningType kFinetuningTypes[] = {
    FinetuningType::kFull, FinetuningType::kFreeze, FinetuningType::kLora};
/// The word that means it.
std::string_view name_of(FinetuningType type);
/// Throws std::logic_error for a word that is none.
FinetuningType finetuning_type_of(const MethodSettings& config);
inline bool trains_adapter(const MethodSettings& config) {
  return finetuning_type_of(config) == FinetuningType::kLora;
}

/// Is bf16 the dtype of computation?
inline bool computes_in_bf16(const ModelSettings& model, const OptimizationSettings& optimization) {
  return optimization.bf16 || model.pure_bf16;
}

/// zero_stage; 0: nothing is divided among ranks.
inline int zero_stage_of(const MemorySettings& config) {
  return static_cast<int>(config.zero_stage.value_or(0));
}
/// Are the parameters themselves divided, and gathered where they are used?
inline bool divides_values(const MemorySettings& config) { return zero_stage_of(config) >= 3; }

/// train_sampling_strategy
enum class SamplingStrategy { kRandom, kSequential };
/// Throws std::logic_error for a word that is none.
SamplingStrategy sampling_strategy_of(const MethodSettings& config);

/// report_to, a list of these
enum class ReportTo {
  kNothing,
  kTensorBoard,
  kAll,  ///< all services that are there: TensorBoard's files, which are built in
};
/// Throws std::logic_error for a word that is none.
std::vector<ReportTo> reports_of(const OutputSettings& config);
bool wants_tensorboard(const OutputSettings& config);

/// device
enum class WantedDevice {
  kAuto,  ///< GPUs where there are some
  kCuda,
  kCpu,
};
/// Throws std::logic_error for a word that is none.
WantedDevice wanted_device_of(const ModelSettings& config);

/// on_bad_row
enum class OnBadRow {
  kStop,
  kSkip,  ///< the row is left out
};
/// Throws std::logic_error for a word that is none.
OnBadRow on_bad_row_of(const DataSettings& config);

/// on_nonfinite
enum class OnNonfinite {
  kStop,
  kSkip,  ///< the step's update is left out
};
/// Throws std::logic_error for a word that is none.
OnNonfinite on_nonfinite_of(const OptimizationSettings& config);

/// offload_activations
enum class OffloadedTo { kNowhere, kMemory, kDisk };
/// Throws std::logic_error for a word that is none.
OffloadedTo activations_offloaded_to(const MemorySettings& config);

/// eval_strategy, save_strategy, logging_strategy
enum class Interval { kNever, kSteps, kEpoch };
/// Throws std::logic_error for a word that is none.
Interval interval_of(const std::string& strategy);

/// resume_from_checkpoint, beside overwrite_output_dir
enum class ResumeFrom {
  kNothing,      ///< false; left out, and output_dir is overwritten
  kNewestIfAny,  ///< left out: of output_dir
  kNewest,       ///< true: of output_dir, which must have one
  kFolder,       ///< the folder that it names
};
ResumeFrom resume_from(const OutputSettings& config);
/// Does the same command go on by itself from what it has saved?
inline bool goes_on_by_itself(const OutputSettings& config) {
  const ResumeFrom from = resume_from(config);
  return from == ResumeFrom::kNewestIfAny || from == ResumeFrom::kNewest;
}

}  // namespace longspan
