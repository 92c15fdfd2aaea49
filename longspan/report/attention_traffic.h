// Counts the bytes that sequence parallelism sends in a run, beside the formula.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/comm/mesh.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Counts what the attention of a training run sends, and what mixer_volume() says of the same
/// rows. Does not count the sums of gradients and losses.
class AttentionTraffic {
 public:
  /// Counts the mixers of `model`. `element_bytes`: of one number that they send. `checkpointing`
  /// and `output_is_known` as attention_volume has them.
  AttentionTraffic(const Mesh& mesh, const ParallelPlan& plan, const ModelSpec& model,
                   int64_t element_bytes, bool checkpointing, bool output_is_known,
                   at::Device device);

  /// Counts what a row sends. Call begin_row() before the row's forward, end_forward() after it,
  /// and end_backward() after its backward.
  void begin_row();
  /// `padded`: the row as TokenOrder::packing has it.
  void end_forward(const Packing& padded);
  void end_backward();

  /// Bytes sent to other ranks, of all ranks of the run together, a layer: the mean of the layers,
  /// where they are of several kinds.
  struct Direction {
    int64_t all_to_all = 0, all_gather = 0, reduce_scatter = 0, shift = 0;
    int64_t formula = 0;
    int64_t measured() const { return all_to_all + all_gather + reduce_scatter + shift; }
  };
  struct Report {
    std::string choice;  // ParallelPlan::reason
    int64_t num_rows = 0, num_tokens = 0;
    Direction forward, backward;
  };
  /// Collective.
  Report report(const Group& world) const;

 private:
  /// Adds what was sent since the last call.
  void add_to(Direction& direction);

  ParallelPlan plan_;
  std::vector<std::pair<TokenMixerSpec, int64_t>> layers_;
  int64_t num_layers_ = 0;
  int64_t element_bytes_;
  bool checkpointing_, output_is_known_;
  at::Device device_;
  bool counts_rows_;
  const Mesh& mesh_;
  Traffic before_;
  Report mine_;  // of all layers; formula on one rank of a sequence group
};

/// A small table. Empty where nothing was exchanged.
std::string table_of(const AttentionTraffic::Report& report);

/// sequence_parallel.json.
void write_report(const std::string& folder, const AttentionTraffic::Report& report);

}  // namespace longspan
