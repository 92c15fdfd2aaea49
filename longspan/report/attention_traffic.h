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
  /// A model and the plan of its attention.
  struct Sender {
    const ModelSpec& model;
    const ParallelPlan& plan;
  };
  /// Counts the mixers of `policy` and, in passes of the reference, the mixers of `reference`.
  AttentionTraffic(const Mesh& mesh, const Sender& policy, const Sender& reference,
                   const Sending& sending, at::Device device);

  /// Count the bytes of a row. Call begin_row() before the row's forward, end_forward() after the
  /// forward, and end_backward() after the backward.
  void begin_row();
  /// `padded`: the row as in TokenOrder::packing.
  void end_forward(const Packing& padded);
  void end_backward();
  /// Count the bytes of a pass of the reference, within a row or between rows. These bytes are not
  /// added to the bytes of the row's forward.
  void begin_reference();
  void end_reference(const Packing& padded);

  /// Bytes that all ranks of the run send to other ranks, per layer (the mean over the layers of
  /// the model that sends).
  struct Direction {
    int64_t all_to_all = 0, all_gather = 0, reduce_scatter = 0, shift = 0;
    int64_t formula = 0;
    int64_t features = 0;  // features of pictures, not per layer; not in measured()
    int64_t measured() const { return all_to_all + all_gather + reduce_scatter + shift; }
  };
  struct Report {
    std::string choice;  // ParallelPlan::reason
    int64_t num_rows = 0, num_tokens = 0;
    Direction forward, backward;
    Direction reference;  // passes of the reference, which have no backward
  };
  /// Returns the totals. Collective.
  Report report(const Group& world) const;

 private:
  /// The mixers of a model, and their numbers of layers.
  struct Mixers {
    explicit Mixers(const Sender& sender);
    AttentionVolume volume(const Packing& padded, const Sending& sending) const;

    ParallelPlan plan;
    std::vector<std::pair<TokenMixerSpec, int64_t>> layers;
    int64_t num_layers = 0;
  };

  /// Adds the bytes sent since `begin`; returns the bytes sent so far.
  Traffic add_to(Direction& direction, const Traffic& begin) const;

  Mixers policy_, reference_;
  Sending sending_;
  at::Device device_;
  bool counts_rows_;
  const Mesh& mesh_;
  Traffic before_, before_reference_;
  Report mine_;  // totals of all layers; the formula only on one rank of a sequence group
};

/// Returns a small table; empty if nothing was exchanged.
std::string table_of(const AttentionTraffic::Report& report);

/// Writes sequence_parallel.json into `folder`.
void write_report(const std::string& folder, const AttentionTraffic::Report& report);

}  // namespace longspan
