// Counts the bytes that expert parallelism sends in a run, and compares them to the formula.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "longspan/comm/group.h"
#include "longspan/expert_parallel/expert_parallel.h"
#include "longspan/plan/expert_volume.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Counts the bytes to and from experts of other ranks in training, and the bytes that
/// expert_volume() predicts for as many rows.
class ExpertTraffic {
 public:
  /// `experts`: null if nothing is sent; must outlive this object. `element_bytes`: of the rows'
  /// elements.
  ExpertTraffic(const ExpertParallel* experts, const ModelSpec& policy, const ModelSpec& reference,
                int64_t element_bytes, at::Device device);

  /// Call begin_row() before a row's forward, end_forward() after the forward, and end_backward()
  /// after the backward.
  void begin_row();
  void end_forward();
  void end_backward();
  /// Count the bytes of a pass of the reference, within a row or between rows.
  void begin_reference();
  void end_reference();

  /// Totals of all ranks and layers.
  struct Direction {
    int64_t measured = 0, formula = 0;
  };
  struct Report {
    int size = 1;          // expert_parallel_size
    int64_t num_rows = 0;  // pairs of a token and an expert of another rank, in forwards
    Direction forward, backward;
    Direction reference;  // passes of the reference
  };
  /// Returns the totals. Collective.
  Report report(const Group& world) const;

 private:
  struct Sent {
    int64_t bytes = 0;
    ExpertParallel::Use use;
    /// Adds the traffic between `begin` and `end`.
    void add(const Sent& begin, const Sent& end);
  };
  Sent so_far() const;
  /// Adds the traffic since `begin`; returns the total traffic so far.
  Sent add_to(Sent& sum, const Sent& begin) const;

  const ExpertParallel* experts_;
  ExpertShape shape_, reference_shape_;
  at::Device device_;
  Sent before_, before_reference_, forward_, backward_, reference_;
};

/// Returns a small table; empty if experts are not distributed.
std::string table_of(const ExpertTraffic::Report& report);

/// Writes expert_parallel.json into `folder`.
void write_report(const std::string& folder, const ExpertTraffic::Report& report);

}  // namespace longspan
