// Counts the bytes that sequence parallelism sends in a run, and compares them to the formula.
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

/// Counts the bytes that the token mixers of a training run send, and the bytes that mixer_volume()
/// predicts for the same rows. Excludes reductions of gradients and losses.
class AttentionTraffic {
 public:
  /// Settings of a step that determine the bytes that it sends. The booleans are arguments of
  /// attention_volume().
  struct Sending {
    int64_t element_bytes;
    bool checkpointing, output_is_known;
  };
  /// Counts the mixers of `model`.
  AttentionTraffic(const Mesh& mesh, const ParallelPlan& plan, const ModelSpec& model,
                   const Sending& sending, at::Device device);

  /// Count the bytes of a row. Call begin_row() before the row's forward, end_forward() after the
  /// forward, and end_backward() after the backward.
  void begin_row();
  /// `padded`: the row as in TokenOrder::packing.
  void end_forward(const Packing& padded);
  void end_backward();

  /// Bytes that all ranks of the run send to other ranks, per layer (the mean over layers).
  struct Direction {
    int64_t all_to_all = 0, all_gather = 0, reduce_scatter = 0, shift = 0;
    int64_t formula = 0;
    int64_t features = 0;  // of pictures, for all layers together; not in measured()
    int64_t measured() const { return all_to_all + all_gather + reduce_scatter + shift; }
  };
  struct Report {
    std::string choice;  // ParallelPlan::reason
    int64_t num_rows = 0, num_tokens = 0;
    Direction forward, backward;
  };
  /// Returns the totals. Collective.
  Report report(const Group& world) const;

 private:
  /// Adds the bytes sent since the last call.
  void add_to(Direction& direction);

  ParallelPlan plan_;
  std::vector<std::pair<TokenMixerSpec, int64_t>> layers_;
  int64_t num_layers_ = 0;
  Sending sending_;
  at::Device device_;
  bool counts_rows_;
  const Mesh& mesh_;
  Traffic before_;
  Report mine_;  // totals of all layers; the formula only on one rank of a sequence group
};

/// Returns a small table; empty if nothing was exchanged.
std::string table_of(const AttentionTraffic::Report& report);

/// Writes sequence_parallel.json into `folder`.
void write_report(const std::string& folder, const AttentionTraffic::Report& report);

}  // namespace longspan
