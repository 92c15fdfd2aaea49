// One-screen summary of a run before it starts. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/models/model_config.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/step_plan.h"

namespace longspan {

class ExampleSet;
struct MethodSettings;
struct ModelSettings;
struct OptimizationSettings;
struct OutputSettings;
struct PreferenceSettings;

/// The sections of the configuration that a summary reads.
struct SummarySettings {
  const ModelSettings& model;
  const MethodSettings& method;
  const PreferenceSettings& preferences;
  const OptimizationSettings& optimization;
  const OutputSettings& output;
};

struct SummaryFacts {
  SummarySettings settings;
  const ModelConfig& model;
  const ParallelPlan& plan;
  const StepPlan& steps;
  const ExampleSet& train_examples;  // empty: the caller makes the examples, or they are streamed
  const ExampleSet& eval_examples;
  int64_t num_parameters, num_trained;
  int64_t num_warmup_steps;
  std::string device;     // e.g. "CPU, 2 threads"
  bool streams = false;   // the training rows are read during training
  bool is_early = false;  // the examples are encoded during training
};

/// Returns one line each for model, data, plan and training.
std::string summary_of(const SummaryFacts& facts);

}  // namespace longspan
