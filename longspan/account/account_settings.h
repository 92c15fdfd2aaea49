// The sections of the configuration that the memory account (the estimate of a run's memory) reads.
// No torch.
#pragma once

namespace longspan {

struct MemorySettings;
struct MethodSettings;
struct ModelSettings;
struct OptimizationSettings;
struct PreferenceSettings;

struct AccountSettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const PreferenceSettings& preferences;
  const OptimizationSettings& optimization;
  const MemorySettings& memory;
};

}  // namespace longspan
