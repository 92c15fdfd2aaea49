// The sections of the configuration that the memory account (the estimate of a run's memory) reads.
// No torch.
#pragma once

namespace longspan {

struct FolderBits;
struct MemorySettings;
struct MethodSettings;
struct ModelSettings;
struct OptimizationSettings;
struct OutputSettings;
struct PreferenceSettings;

struct AccountSettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const PreferenceSettings& preferences;
  const OptimizationSettings& optimization;
  const MemorySettings& memory;
  /// The matrices that the folder of model_name_or_path holds in 4 bits; null: none.
  const FolderBits* folder = nullptr;
  /// Null: nothing is copied to be saved.
  const OutputSettings* output = nullptr;
};

}  // namespace longspan
