// Enums for keys whose value is one of several words. The table of keys has the words. With a
// switch over an enum, the compiler reports every place that does not handle a new word. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "longspan/settings/data_settings.h"
#include "longspan/settings/memory_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

/// finetuning_type
enum class FinetuningType {
  kFull,
  kFreeze,  ///< trains some layers
  kLora,    ///< trains low-rank matrices that are added to the model's matrices
};
inline constexpr FinetuningType kFinetuningTypes[] = {
    FinetuningType::kFull, FinetuningType::kFreeze, FinetuningType::kLora};
/// Returns the type's word.
std::string_view name_of(FinetuningType type);
/// Throws std::logic_error for an unknown word.
FinetuningType finetuning_type_of(const MethodSettings& config);
inline bool trains_adapter(const MethodSettings& config) {
  return finetuning_type_of(config) == FinetuningType::kLora;
}

/// Whether bf16 is the dtype of computation.
inline bool computes_in_bf16(const ModelSettings& model, const OptimizationSettings& optimization) {
  return optimization.bf16 || model.pure_bf16;
}

/// reduce_scatter
enum class ReduceScatter {
  kAuto,      ///< NCCL's, if NCCL connects the processes, unless full_determinism
  kNccl,      ///< NCCL's reduce-scatter
  kExchange,  ///< all-to-all, and a sum in the order of ranks
};
/// Throws std::logic_error for an unknown word.
ReduceScatter reduce_scatter_of(const ModelSettings& config);
/// Whether NCCL connects the processes of a run on GPUs (`cuda`) or CPUs.
inline bool uses_nccl(const ModelSettings& config, bool cuda) { return cuda && !config.share_gpus; }
/// Whether NCCL's reduce-scatter sums over ranks that share the sum out.
bool sums_by_nccl(const ModelSettings& config, bool cuda);

/// zero_stage; 0: nothing is sharded.
inline int zero_stage_of(const MemorySettings& config) {
  return static_cast<int>(config.zero_stage.value_or(0));
}
/// Whether the parameters themselves are sharded, and gathered at use.
inline bool divides_values(const MemorySettings& config) { return zero_stage_of(config) >= 3; }

/// train_sampling_strategy
enum class SamplingStrategy { kRandom, kSequential };
/// Throws std::logic_error for an unknown word.
SamplingStrategy sampling_strategy_of(const MethodSettings& config);

/// report_to, a list of these words
enum class ReportTo {
  kNothing,
  kTensorBoard,
  kAll,  ///< TensorBoard's files
  kWandb,
  kTrackio,
  kSwanlab,
  kMlflow,
};
/// Throws std::logic_error for an unknown word.
std::vector<ReportTo> reports_of(const OutputSettings& config);
bool wants_tensorboard(const OutputSettings& config);
/// Returns the services that get the numbers through a Python package of the same name.
std::vector<std::string> services_of(const OutputSettings& config);

/// device
enum class WantedDevice {
  kAuto,  ///< a GPU, if there is a GPU
  kCuda,
  kCpu,
};
/// Throws std::logic_error for an unknown word.
WantedDevice wanted_device_of(const ModelSettings& config);

/// mix_strategy
enum class MixStrategy {
  kConcat,
  kInterleaveUnder,  ///< ends with the first data set that has no more rows
  kInterleaveOver,   ///< ends with the last one; others begin again
  kInterleaveOnce,   ///< ends with the last one; each row once
};
/// Throws std::logic_error for an unknown word.
MixStrategy mix_strategy_of(const DataSettings& config);

/// on_bad_row
enum class OnBadRow {
  kStop,
  kSkip,  ///< leaves the row out
};
/// Throws std::logic_error for an unknown word.
OnBadRow on_bad_row_of(const DataSettings& config);

/// on_nonfinite
enum class OnNonfinite {
  kStop,
  kSkip,  ///< skips the step's update
};
/// Throws std::logic_error for an unknown word.
OnNonfinite on_nonfinite_of(const OptimizationSettings& config);

/// offload_activations
enum class OffloadedTo { kNowhere, kMemory, kDisk };
/// Throws std::logic_error for an unknown word.
OffloadedTo activations_offloaded_to(const MemorySettings& config);

/// eval_strategy, save_strategy, logging_strategy
enum class Interval { kNever, kSteps, kEpoch };
/// Throws std::logic_error for an unknown word.
Interval interval_of(const std::string& strategy);

/// resume_from_checkpoint, together with overwrite_output_dir
enum class ResumeFrom {
  kNothing,      ///< false; or not set, and output_dir is overwritten
  kNewestIfAny,  ///< not set: the newest checkpoint of output_dir, if any
  kNewest,       ///< true: the newest checkpoint of output_dir, which must have a checkpoint
  kFolder,       ///< the named folder
};
ResumeFrom resume_from(const OutputSettings& config);
/// Whether the same command, run again, continues from its newest checkpoint.
inline bool goes_on_by_itself(const OutputSettings& config) {
  const ResumeFrom from = resume_from(config);
  return from == ResumeFrom::kNewestIfAny || from == ResumeFrom::kNewest;
}

}  // namespace longspan
