// Counts the bytes that ranks send each other for the rows of training.
#pragma once

#include <string>
#include <vector>

#include "longspan/report/attention_traffic.h"
#include "longspan/report/expert_traffic.h"

namespace longspan {

/// The bytes of sequence parallelism and of expert parallelism.
struct SentBytes {
  AttentionTraffic::Report attention;
  ExpertTraffic::Report experts;
};

class RowTraffic {
 public:
  RowTraffic(AttentionTraffic attention, ExpertTraffic experts);

  /// Call begin_row() before a row's forward, end_forward() after the forward, and end_backward()
  /// after the backward. `padded`: the row as in TokenOrder::packing.
  void begin_row();
  void end_forward(const Packing& padded);
  void end_backward();
  /// Count a pass of the reference, within a row of training or between rows. Outside of
  /// count_references(true) nothing is counted: passes of an evaluation belong to no row.
  void begin_reference();
  void end_reference(const Packing& padded);
  void count_references(bool on) { counts_references_ = on; }
  /// Returns the totals. Collective.
  SentBytes report(const Group& world) const;

 private:
  AttentionTraffic attention_;
  ExpertTraffic experts_;
  bool counts_references_ = false;
};

/// Returns a small table for each kind of parallelism that has sent something.
std::vector<std::string> tables_of(const SentBytes& sent);

/// Writes sequence_parallel.json and expert_parallel.json, each only if its kind has a table.
void write_reports(const std::string& folder, const SentBytes& sent);

}  // namespace longspan
