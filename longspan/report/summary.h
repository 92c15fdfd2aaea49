// What a run says before it starts, on one screen. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/models/model_config.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/step_plan.h"

namespace longspan {

struct Config;
class ExampleSet;

struct SummaryFacts {
  const Config& config;
  const ModelConfig& model;
  const ParallelPlan& plan;
  const StepPlan& steps;
  const ExampleSet& train_examples;
  const ExampleSet& eval_examples;
  int64_t num_parameters, num_trained;
  int64_t num_warmup_steps;
  std::string device;  // "CPU, 2 threads"
};

/// Model, data, plan and training, a line each.
std::string summary_of(const SummaryFacts& facts);

}  // namespace longspan
