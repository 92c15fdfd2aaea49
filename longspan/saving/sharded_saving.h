// A model folder written by all ranks, none of which holds the whole model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "longspan/account/saved_copy.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/memory/host_copies.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/saving/saving.h"

namespace longspan {

/// True for a parameter that belongs to the files of the adapter: its own, and whole parameters of
/// the model. The model must have an adapter.
bool is_of_adapter(const SavedModel& model, const std::string& name);

/// Returns the parameters of an adapter's files on rank 0, on the CPU. Collective.
std::vector<NamedTensor> gathered_adapter(const SavedModel& model, ShardedParameters& parameters,
                                          const Group& world);

/// A rank's part of a model's files, in host memory.
struct GatheredModel {
  /// This rank's weight file: its name in the folder, its tensors, and their values, of which a
  /// tensor may have several parts. No name: the rank has none. No tensors: the file is written.
  std::string file;
  std::vector<SafetensorsWriter::Planned> planned;
  std::vector<at::Tensor> weights;
  /// All tensors in weight files, with the file of each.
  std::vector<std::pair<ParameterShape, std::string>> files;
  /// On rank 0.
  std::vector<NamedTensor> adapter, value_head;
  /// Thrown by write_gathered(): the host had no memory for the copies.
  std::exception_ptr failure;
};

/// Gathers one unit after the other. Each rank copies the parameters of a weight file of about the
/// same size; for an adapter, rank 0 copies everything. Collective.
GatheredModel gather_model(const SavedModel& model, ShardedParameters& parameters,
                           const Group& world, HostCopies& copies);

/// As gather_model(), and writes the weight files, all ranks at once. The copies of weights have
/// about `round_bytes` on a rank: after each round of gathers, the ranks write and wait for each
/// other. Collective; throws as all_or_none.
GatheredModel write_weights(const std::string& folder, const SavedModel& model,
                            ShardedParameters& parameters, const Group& world, Notices& notices,
                            int64_t round_bytes = kSavedRoundBytes);

/// Writes this rank's part of the files of ModelSaver into an existing folder that every rank sees.
/// No rank waits for another. Throws UserError.
void write_gathered(const std::string& folder, const SavedModel& model,
                    const GatheredModel& gathered, int rank);

/// Calls write_weights() and write_gathered(). Collective; throws as all_or_none.
void write_sharded_model(const std::string& folder, const SavedModel& model,
                         ShardedParameters& parameters, const Group& world, Notices& notices);

}  // namespace longspan
