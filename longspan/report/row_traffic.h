// Counts the bytes that ranks send each other for the rows that a run trains.
#pragma once

#include <string>
#include <vector>

#include "longspan/report/attention_traffic.h"
#include "longspan/report/expert_traffic.h"

namespace longspan {

/// What sequence parallelism and expert parallelism have sent.
struct SentBytes {
  AttentionTraffic::Report attention;
  ExpertTraffic::Report experts;
};

class RowTraffic {
 public:
  RowTraffic(AttentionTraffic attention, ExpertTraffic experts);

  /// Call begin_row() before a row's forward, end_forward() after it, and end_backward() after its
  /// backward. `padded`: the row as TokenOrder::packing has it.
  void begin_row();
  void end_forward(const Packing& padded);
  void end_backward();
  /// Collective.
  SentBytes report(const Group& world) const;

 private:
  AttentionTraffic attention_;
  ExpertTraffic experts_;
};

/// A small table of each kind of parallelism that has sent something.
std::vector<std::string> tables_of(const SentBytes& sent);

/// sequence_parallel.json and expert_parallel.json, where there is a table of the kind.
void write_reports(const std::string& folder, const SentBytes& sent);

}  // namespace longspan
