// What each rank of a run decides before it has communicated with another or made a tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "longspan/comm/mesh.h"
#include "longspan/models/model_config.h"
#include "longspan/plan/device_choice.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/run_account.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

struct RunPlan {
  Rendezvous where;
  ModelConfig model;   // with rope_scaling, as it is trained
  ModelSpec attended;  // as its attentions see it (train/attended_model.h)
  ParallelPlan parallel;
  DeviceChoice device;
  std::string warning;  // mostly empty

  /// The device of this rank.
  at::Device own_device() const;
  /// What computes, with the threads of this process.
  Computer computer() const;
};

/// Reads the model's config.json and looks for GPUs. Throws UserError.
RunPlan plan_run(const Config& config, const Rendezvous& where = {});

/// The account of the run with rows of these lengths, by numbers alone. Throws UserError.
MemoryAccount account_of_run(const Config& config, const RunPlan& plan, const RowLengths& row);

/// "CUDA", "CPU with 4 threads each (no GPU was found)".
std::string device_text(const DeviceChoice& device);

}  // namespace longspan
